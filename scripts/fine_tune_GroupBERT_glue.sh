#!/usr/bin/env bash
# Fine-tunes GroupBERT on a task of GLUE, evaluates and predicts: ./scripts/fine_tune_GroupBERT_glue.sh base|large TASK [NAME] [train.py flags ...]
# NAME goes into the name of the W&B run. The run is in tmp/groupbert/SIZE/TASK, its log in groupbert_glue_SIZE_TASK_log.txt.
# Environment: INIT_CHECKPOINT (unset: the newest in checkpoint/phase2/groupbert/SIZE), CONFIG_PATH (configs/graphcore/tf1/groupbert/
# glue_base.json, for large glue_large_8IPU.json, for stsb the ones of regression), GLUE_DIR (data/glue), VOCAB_FILE (data/bert/vocab.txt),
# OUTPUT_DIR (tmp/groupbert/SIZE), CHECKPOINT_DIR (checkpoint), LOG_DIR (.), WANDB (unset; 1: send metrics).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/graphcore_recipe.sh

usage="fine_tune_GroupBERT_glue.sh base|large TASK [NAME] [train.py flags ...]"
size="$(size_of "$usage" "$@")"
task="${2:-}"
case "$task" in
  cola | mrpc | mnli | mnli-mm | ax | qnli | qqp | rte | sst2 | stsb | wnli) ;;
  *) fail "the task '$task' is not one of cola, mrpc, mnli, mnli-mm, ax, qnli, qqp, rte, sst2, stsb, wnli." ;;
esac
shift 2
name=""
if [[ $# -gt 0 && "$1" != -* ]]; then
  name=" $1"
  shift
fi
kind=""
[[ "$task" != stsb ]] || kind="_regression"
[[ "$size" != large ]] || kind="${kind}_8IPU"
start="${INIT_CHECKPOINT:-$(start_of "$checkpoints/phase2/groupbert/$size" "Give the one to start from: INIT_CHECKPOINT=PATH." "$@")}"
folder="${GLUE_DIR:-data/glue}"
is_plan "$@" || [[ -d "$folder" ]] || "$python" scripts/download_glue_data.py --data_dir="$folder" --tasks="$task"
train "groupbert_glue_${size}_${task}_log.txt" "GroupBERT $size $task$name" --task=glue --glue_task="$task" \
  "$(config "${CONFIG_PATH:-configs/graphcore/tf1/groupbert/glue_$size$kind.json}")" --data_dir="$folder" \
  --vocab_file="${VOCAB_FILE:-data/bert/vocab.txt}" --model_dir="${OUTPUT_DIR:-tmp/groupbert/$size}/$task" --init_checkpoint="$start" \
  --do_train --do_eval --do_predict "$@"
