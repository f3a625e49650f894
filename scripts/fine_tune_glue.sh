#!/usr/bin/env bash
# Fine-tunes, evaluates and predicts a task of GLUE: ./scripts/fine_tune_glue.sh MODEL TASK [train.py flags ...]
# MODEL is base, large or any other of configs/models: mini, minilm_l6, ...; those without a flagfile of their own take base's.
# Needs INIT_CHECKPOINT, a checkpoint of any known format. Others: GLUE_DIR (data/glue), VOCAB_FILE (data/bert/vocab.txt).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/fine_tune_recipe.sh

[[ $# -ge 2 ]] || fail "usage: fine_tune_glue.sh MODEL TASK [train.py flags ...]. MODEL is one of $(models glue)."
model="$1" task="$2"
shift 2
flags="$(recipe glue "$model" "")"
folder="${GLUE_DIR:-data/glue}"
python="$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)"
# has_files FLAGS...: whether the folder holds the files of this task that the run reads.
has_files() {
  local splits="train dev test"
  [[ " $* " != *" --nodo_predict "* && " $* " != *" --do_predict=false "* ]] || splits="train dev"
  "$python" -c 'import sys
from official.data.glue import tasks
name, folder, *splits = sys.argv[1:]
task = tasks.find_task(name)
for split in set(splits) & set(task.splits):
    task.find_file(split, folder)' "$task" "$folder" $splits 2>/dev/null
}
if ! is_plan "$@"; then
  [[ -n "${INIT_CHECKPOINT:-}" ]] || fail "INIT_CHECKPOINT is not set. Give the checkpoint to start from: INIT_CHECKPOINT=PATH $0 $model $task"
  has_files "$@" || "$python" scripts/download_glue_data.py --data_dir="$folder" --tasks="$task"
fi
# shellcheck disable=SC2086  # flags without spaces
exec "$python" train.py $flags --glue_task="$task" --data_dir="$folder" --model_dir="runs/glue_${model}_$task" \
  --vocab_file="${VOCAB_FILE:-data/bert/vocab.txt}" --init_checkpoint="${INIT_CHECKPOINT:-}" --do_train --do_eval --do_predict "$@"
