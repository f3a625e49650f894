# Sourced by pretrain.sh, pretrain_and_finetune_BERT.sh and fine_tune_GroupBERT_glue.sh: runs that go on from each other.
# Environment: CHECKPOINT_DIR (checkpoint), the folder of all runs; LOG_DIR (.), of what they print; WANDB (unset), 1 to send metrics there.
source scripts/fine_tune_recipe.sh

checkpoints="${CHECKPOINT_DIR:-checkpoint}"
logs="${LOG_DIR:-.}"
python="$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)"

# size_of USAGE ARGUMENTS...: prints the first argument, which is large or base.
size_of() {
  [[ "${2:-}" == large || "${2:-}" == base ]] || fail "usage: $1. Received: ${*:2}"
  echo "$2"
}

# newest FOLDER: prints the newest checkpoint in the folder and below, of this project or of a TF1 program.
newest() {
  local found=""
  [[ ! -d "$1" ]] || found="$(find "$1" -name '*ckpt-*.index' -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-)"
  [[ -n "$found" ]] || fail "$1 has no checkpoint. $2"
  echo "${found%.index}"
}

# start_of FOLDER HINT FLAGS...: prints the newest checkpoint in the folder; for a plan nothing where there is none yet.
start_of() {
  if is_plan "${@:3}"; then
    (newest "$1" "" 2>/dev/null) || true
  else
    newest "$1" "$2"
  fi
}

# config PATH: prints the flag that takes a configuration: one of Graphcore's or ours, or a flagfile.
config() {
  [[ "$1" == *.flags ]] && echo "--flagfile=$1" || echo "--config=$1"
}

# train LOG NAME FLAGS...: runs train.py in Graphcore's log style; what it prints goes to the log, too, unless it is a plan.
# NAME is that of the W&B run.
train() {
  local log="$logs/$1" name="$2" wandb=()
  shift 2
  [[ "${WANDB:-}" != 1 ]] || wandb=(--wandb "--wandb_name=$name")
  if is_plan "$@"; then
    "$python" train.py "$@"
    return
  fi
  mkdir -p "$logs"
  "$python" train.py "$@" --log_style=graphcore ${wandb[@]+"${wandb[@]}"} 2>&1 | tee -i -a "$log"
}

# pretrain SIZE FLAGS...: both phases of pre-training, the second one from the newest checkpoint of the first.
pretrain() {
  local size="$1" configs="configs/graphcore/tf1" data="data/tf_wikipedia" start
  shift
  if [[ -z "${PHASE1_CHECKPOINT:-}" ]]; then
    train "pretrain_${size}_128_log.txt" "BERT $size Phase 1" "$(config "${PHASE1_CONFIG_PATH:-$configs/pretrain_${size}_128_phase1.json}")" \
      --input_files="${PHASE1_TRAIN_FILE:-$data/tokenised_128_dup5_mask20/*.tfrecord}" --model_dir="$checkpoints/phase1/$size" "$@"
  fi
  start="${PHASE1_CHECKPOINT:-$(start_of "$checkpoints/phase1/$size" "Phase 1 has saved none." "$@")}"
  train "pretrain_${size}_384_log.txt" "BERT $size Phase 2" "$(config "${PHASE2_CONFIG_PATH:-$configs/pretrain_${size}_384_phase2.json}")" \
    --input_files="${PHASE2_TRAIN_FILE:-$data/tokenised_384_dup5_mask56/*.tfrecord}" --model_dir="$checkpoints/phase2/$size" \
    --init_checkpoint="$start" "$@"
}
