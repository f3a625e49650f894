#!/usr/bin/env bash
# Fine-tunes, evaluates and predicts a task of GLUE: ./scripts/fine_tune_glue.sh base|large TASK [train.py flags ...]
# Needs INIT_CHECKPOINT, a checkpoint of any known format. Others: GLUE_DIR (data/glue), VOCAB_FILE (data/bert/vocab.txt).
set -euo pipefail

fail() {
  echo "fine_tune_glue.sh: $*" >&2
  exit 2
}

[[ $# -ge 2 ]] || fail "usage: fine_tune_glue.sh base|large TASK [train.py flags ...]"
size="$1" task="$2"
shift 2
[[ "$size" == base || "$size" == large ]] || fail "the size $size is not one of base, large."
[[ -n "${INIT_CHECKPOINT:-}" ]] || fail "INIT_CHECKPOINT is not set. Give the checkpoint to start from: INIT_CHECKPOINT=PATH $0 $size $task"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder="${GLUE_DIR:-data/glue}"
python="$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)"
[[ -d "$folder" ]] || "$python" scripts/download_glue_data.py --data_dir="$folder" --tasks="$task"
exec "$python" train.py --flagfile="configs/glue_$size.flags" --glue_task="$task" --data_dir="$folder" --model_dir="runs/glue_${size}_$task" \
  --vocab_file="${VOCAB_FILE:-data/bert/vocab.txt}" --init_checkpoint="$INIT_CHECKPOINT" --do_train --do_eval --do_predict "$@"
