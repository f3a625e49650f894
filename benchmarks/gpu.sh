#!/usr/bin/env bash
# Measures on one GPU of a machine, in steps of at most ten minutes each: ./benchmarks/gpu.sh, or some of the steps by name.
#   doctor  the page of bert doctor
#   tests   the tests of GPUs
#   base    the step of BERT-base at 128 and 512 tokens, bf16 and fp16, LAMB, beside PyTorch
#   large   the same of BERT-large
#   squad   MiniLM on SQuAD 1.1; SQUAD_DATA holds train-articles-v1.1.json and eval-articles-v1.1.json, MINILM the model
#   embed   vectors of 100,000 sentences of MiniLM, beside sentence-transformers; DATA holds glue/SST-2 and glue/QNLI
# Results go to OUT (default: gpu_results). The peers' environment is made on the first run (PEERS, default .peers).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out="${OUT:-gpu_results}" peers="${PEERS:-.peers}" python="${PYTHON:-.venv/bin/python}"
mkdir -p "$out"

step() { # NAME MODEL SHAPES
  timeout 600 "$python" benchmarks/peers.py --bert_config_file="configs/models/$2.json" --num_gpus=1 --optimizer_type=lamb \
    --dtypes=bf16,fp16 --shapes="$3" --peers=ours,huggingface_compiled --rounds=5 --steps=10 \
    --environments="$peers" --make_environments --output="$out/$1" --overwrite
}

doctor() { timeout 90 "$python" -m official.cli doctor | tee "$out/doctor.txt"; }
tests() { timeout 600 "$python" -m pytest -m gpu tests/gpu -n 4 -q | tee "$out/tests.txt"; }
base() { step gpu_step_base bert_base 128x128,512x32; }
large() { step gpu_step_large bert_large 128x48,512x12; }
squad() {
  : "${SQUAD_DATA:?names the folder of train-articles-v1.1.json}" "${MINILM:?names the folder of the model}"
  timeout 600 "$python" train.py --flagfile=configs/squad_minilm.flags --num_gpus=1 --train_file="$SQUAD_DATA/train-articles-v1.1.json" \
    --predict_file="$SQUAD_DATA/eval-articles-v1.1.json" --vocab_file="$MINILM/vocab.txt" \
    --init_checkpoint="$MINILM/model.safetensors" --do_train --do_predict --do_eval --model_dir="$out/squad_minilm"
}
embed() {
  : "${DATA:?names the folder of glue/}" "${MINILM:?names the folder of the model}"
  timeout 600 "$python" benchmarks/embedding.py --checkpoint="$MINILM" --data_dir="$DATA" --work_dir="$out/embed" --rounds=2 \
    --batch_sizes=128,512 --environments="$peers" --make_environments --output="$out/gpu_embedding" --overwrite
}

steps=("$@")
((${#steps[@]})) || steps=(doctor tests base large squad embed)
for name in "${steps[@]}"; do
  case "$name" in
    doctor | tests | base | large | squad | embed) echo "== $name"; "$name" || echo "== $name ended with code $?" ;;
    *) echo "gpu.sh: $name is none of the steps: doctor tests base large squad embed" >&2; exit 2 ;;
  esac
done
