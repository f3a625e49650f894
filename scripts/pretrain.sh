#!/usr/bin/env bash
# Pre-trains BERT on 128 tokens, then from there on 384: ./scripts/pretrain.sh large|base [train.py flags of both phases ...]
# The same command goes on where it was interrupted. Runs are in checkpoint/phase{1,2}/SIZE, logs in pretrain_SIZE_{128,384}_log.txt.
# Environment: PHASE1_CONFIG_PATH and PHASE2_CONFIG_PATH (configs/graphcore/tf1/pretrain_SIZE_{128_phase1,384_phase2}.json),
# PHASE1_TRAIN_FILE and PHASE2_TRAIN_FILE (globs of records, data/tf_wikipedia/tokenised_{128_dup5_mask20,384_dup5_mask56}/*.tfrecord),
# PHASE1_CHECKPOINT (unset; where it is set, phase 1 is left out), CHECKPOINT_DIR (checkpoint), LOG_DIR (.), WANDB (unset; 1: send metrics).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/graphcore_recipe.sh

size="$(size_of "pretrain.sh large|base [train.py flags ...]" "$@")"
pretrain "$size" "${@:2}"
