#!/usr/bin/env bash
# Fine-tunes, answers and scores on SQuAD: ./scripts/fine_tune_squad.sh MODEL v1|v2 [train.py flags ...]
# MODEL is base, large or any other of configs/models: mini, minilm_l6, ...; those without a flagfile of their own take base's.
# Needs INIT_CHECKPOINT, a checkpoint of any known format. Others: SQUAD_DIR (data/squad), VOCAB_FILE (data/bert/vocab.txt).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/fine_tune_recipe.sh

[[ $# -ge 2 ]] || fail "usage: fine_tune_squad.sh MODEL v1|v2 [train.py flags ...]. MODEL is one of $(models squad)."
model="$1" version="$2"
shift 2
case "$version" in
  v1) data=v1.1 suffix="" ;;
  v2) data=v2.0 suffix=_v2 ;;
  *) fail "the version $version is not one of v1, v2." ;;
esac
flags="$(recipe squad "$model" "$suffix")"
folder="${SQUAD_DIR:-data/squad}"
if ! is_plan "$@"; then
  [[ -n "${INIT_CHECKPOINT:-}" ]] || fail "INIT_CHECKPOINT is not set. Give the checkpoint to start from: INIT_CHECKPOINT=PATH $0 $model $version"
  [[ -e "$folder/train-$data.json" && -e "$folder/dev-$data.json" ]] || ./scripts/download_squad.sh "$folder"
fi
python="$([[ -x .venv/bin/python ]] && echo .venv/bin/python || echo python3)"
# shellcheck disable=SC2086  # flags without spaces
exec "$python" train.py $flags --model_dir="runs/squad_$model$suffix" --train_file="$folder/train-$data.json" --predict_file="$folder/dev-$data.json" \
  --vocab_file="${VOCAB_FILE:-data/bert/vocab.txt}" --init_checkpoint="${INIT_CHECKPOINT:-}" --do_train --do_predict --do_eval "$@"
