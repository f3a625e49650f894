#!/usr/bin/env bash
# Pre-trains BERT on IPU pods through poprun. Both published interfaces; the first word tells them apart:
#   ./scripts/pretrain_distributed.sh POD32|POD64|POD128 VIPU_HOST HOST...                                  large; phase 1, then phase 2
#   ./scripts/pretrain_distributed.sh base|large POD64|POD128 ALLOCATION PARTITION VIPU_HOST HOST...          phase 1
# Keys, code, environment and SDK are copied to the hosts first. The same command goes on where it was interrupted.
# Environment: PHASE1_CONFIG_PATH, PHASE2_CONFIG_PATH (configs/graphcore/tf1 or tf2, by the arguments), PHASE1_TRAIN_FILE, PHASE2_TRAIN_FILE
# (globs of records: below /localdata/datasets/tf_wikipedia, with the second interface DATASETS_DIR/wikipedia/128), VIPU_PARTITION_NAME
# (pod32, pod64, gcl128), IPU_PYTHON (python3.8, that of the Poplar SDK), LOCAL_HOME (/localdata/USER), CODE_PATH (.), VENV_PATH, SDK_PATH,
# CHECKPOINT_DIR (checkpoint), LOG_DIR (.), WANDB (unset; 1: send metrics), DRY_RUN (unset; 1: print what would be run on the pod).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/graphcore_recipe.sh

usage="pretrain_distributed.sh POD32|POD64|POD128 VIPU_HOST HOST..., or base|large POD64|POD128 ALLOCATION PARTITION VIPU_HOST HOST..."
received="$*"
stop() { fail "$1. Usage: $usage. Received: $received"; }

first="${1:-}"
case "$first" in
  POD32 | POD64 | POD128)
    (($# >= 3)) || stop "3 arguments or more are needed"
    like=tf1 model=large pod="$first" vipu_host="$2" site=()
    hosts=("${@:3}")
    wanted=$([[ "$pod" == POD128 ]] && echo 2 || echo 1)
    ((${#hosts[@]} == wanted)) || stop "$pod needs $wanted host(s), received ${#hosts[@]}"
    data=/localdata/datasets/tf_wikipedia
    train1="${PHASE1_TRAIN_FILE:-$data/tokenised_128_dup5_mask20/*.tfrecord}"
    [[ "$pod" != POD128 || -n "${PHASE1_CONFIG_PATH:-}" && -n "${PHASE2_CONFIG_PATH:-}" ]] \
      || stop "POD128 needs PHASE1_CONFIG_PATH and PHASE2_CONFIG_PATH"
    ;;
  base | large)
    (($# >= 6)) || stop "6 arguments or more are needed"
    like=tf2 model="$first" pod="$2" vipu_host="$5" site=("--vipu_allocation=$3")
    VIPU_PARTITION_NAME="$4"
    hosts=("${@:6}")
    [[ "$pod" == POD64 || "$pod" == POD128 ]] || stop "the size of the pod is POD64 or POD128"
    train1="${PHASE1_TRAIN_FILE:-${DATASETS_DIR:-}/wikipedia/128/*.tfrecord}"
    [[ -n "${PHASE1_TRAIN_FILE:-}${DATASETS_DIR:-}" ]] || stop "DATASETS_DIR or PHASE1_TRAIN_FILE must be set"
    ;;
  *) stop "the first argument is none of POD32, POD64, POD128, base and large" ;;
esac
partition="${VIPU_PARTITION_NAME:-$([[ "$pod" == POD128 ]] && echo gcl128 || echo "${pod,,}")}"
host_list="$(IFS=, && echo "${hosts[*]}")"
started="$(date +%s)"

# settings PHASE LENGTH FLAGS...: writes the configuration of a phase to its file, whose name it prints.
settings() {
  local phase="$1" file="$logs/pretrain_${model}_$2_config.json" wandb=()
  [[ "${WANDB:-}" != 1 ]] || wandb=(--wandb "--wandb_name=$pod ${model^} phase $phase")
  mkdir -p "$logs"
  "$python" train.py "${@:3}" --distribution_strategy=ipu --model_dir="$checkpoints/phase$phase/$model" \
    ${wandb[@]+"${wandb[@]}"} --plan --plan_file="$file" >&2
  echo "$file"
}

# on_pod LOG CONFIG FLAGS...: trains through poprun; what it prints goes to the log, too.
on_pod() {
  local text
  text="$("$python" scripts/launch.py --print_poprun --poprun_like="$like" --hosts="$host_list" --vipu_server_host="$vipu_host" \
    --vipu_partition="$partition" ${site[@]+"${site[@]}"} "${@:3}" -- "${IPU_PYTHON:-python3.8}" -m official.graphcore "$2")"
  if [[ "${DRY_RUN:-}" == 1 ]]; then
    echo "$text"
  else
    bash -euo pipefail -c "$text" 2>&1 | tee -i -a "$logs/$1"
  fi
}

config1="$(config "${PHASE1_CONFIG_PATH:-configs/graphcore/$like/pretrain_${model}_128_phase1_$pod.json}")"
file="$(settings 1 128 "$config1" --input_files="$train1")"
copies=()
[[ -z "${LOG_DIR:-}" ]] || copies+=("$file") # within the code it is copied with it
[[ "$like" == tf1 ]] || copies+=("$(dirname "$train1")")
on_pod "pretrain_${model}_128_log_$started.txt" "$file" --copies="$(IFS=, && echo "${copies[*]-}")"
[[ "$like" == tf1 && "${DRY_RUN:-}" != 1 ]] || exit 0

start="$(newest "$checkpoints/phase1/$model" "Phase 1 has saved none.")"
config2="$(config "${PHASE2_CONFIG_PATH:-configs/graphcore/tf1/pretrain_large_384_phase2_$pod.json}")"
file="$(settings 2 384 "$config2" --input_files="${PHASE2_TRAIN_FILE:-$data/tokenised_384_dup5_mask58/*.tfrecord}" --init_checkpoint="$start")"
copies=("$start"* "$file")
on_pod "pretrain_large_384_log_$started.txt" "$file" --no-preparation --copies="$(IFS=, && echo "${copies[*]}")"
