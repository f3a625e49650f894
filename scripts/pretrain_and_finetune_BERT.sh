#!/usr/bin/env bash
# Pre-trains BERT in both phases and fine-tunes it on SQuAD 1.1: ./scripts/pretrain_and_finetune_BERT.sh large|base [train.py flags of all three ...]
# The same command goes on where it was interrupted; SQuAD starts from the newest checkpoint of phase 2.
# Environment: that of pretrain.sh, and PHASE2_CHECKPOINT (unset; where it is set, pre-training is left out),
# SQUAD_CONFIG_PATH (configs/graphcore/tf1/squad_SIZE.json), SQUAD_DIR (data/squad), VOCAB_FILE (data/bert/vocab.txt).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/graphcore_recipe.sh

size="$(size_of "pretrain_and_finetune_BERT.sh large|base [train.py flags ...]" "$@")"
[[ -n "${PHASE2_CHECKPOINT:-}" ]] || pretrain "$size" "${@:2}"
start="${PHASE2_CHECKPOINT:-$(start_of "$checkpoints/phase2/$size" "Phase 2 has saved none." "${@:2}")}"
folder="${SQUAD_DIR:-data/squad}"
is_plan "$@" || [[ -e "$folder/train-v1.1.json" && -e "$folder/dev-v1.1.json" ]] || ./scripts/download_squad.sh "$folder"
train "squad_${size}_log.txt" "SQuAD $size fine tuning v1" --task=squad "$(config "${SQUAD_CONFIG_PATH:-configs/graphcore/tf1/squad_$size.json}")" \
  --train_file="$folder/train-v1.1.json" --predict_file="$folder/dev-v1.1.json" --vocab_file="${VOCAB_FILE:-data/bert/vocab.txt}" \
  --model_dir="$checkpoints/squad/$size" --init_checkpoint="$start" --do_train --do_predict --do_eval "${@:2}"
