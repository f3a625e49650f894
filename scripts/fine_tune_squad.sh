#!/usr/bin/env bash
# Fine-tunes, answers and scores on SQuAD: ./scripts/fine_tune_squad.sh base|large v1|v2 [train.py flags ...]
# Needs INIT_CHECKPOINT, a checkpoint of any known format. Others: SQUAD_DIR (data/squad), VOCAB_FILE (data/bert/vocab.txt).
set -euo pipefail

fail() {
  echo "fine_tune_squad.sh: $*" >&2
  exit 2
}

[[ $# -ge 2 ]] || fail "usage: fine_tune_squad.sh base|large v1|v2 [train.py flags ...]"
size="$1" version="$2"
shift 2
[[ "$size" == base || "$size" == large ]] || fail "the size $size is not one of base, large."
case "$version" in
  v1) data=v1.1 config="squad_$size" ;;
  v2) data=v2.0 config="squad_${size}_v2" ;;
  *) fail "the version $version is not one of v1, v2." ;;
esac
[[ -n "${INIT_CHECKPOINT:-}" ]] || fail "INIT_CHECKPOINT is not set. Give the checkpoint to start from: INIT_CHECKPOINT=PATH $0 $size $version"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder="${SQUAD_DIR:-data/squad}"
[[ -e "$folder/train-$data.json" && -e "$folder/dev-$data.json" ]] || ./scripts/download_squad.sh "$folder"
python="$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)"
exec "$python" train.py --flagfile="configs/$config.flags" --train_file="$folder/train-$data.json" --predict_file="$folder/dev-$data.json" \
  --vocab_file="${VOCAB_FILE:-data/bert/vocab.txt}" --init_checkpoint="$INIT_CHECKPOINT" --do_train --do_predict --do_eval "$@"
