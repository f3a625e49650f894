#!/usr/bin/env bash
# From nothing to a trained BERT: environment, corpus, vocabulary, records, training. What is done already is not done again.
set -euo pipefail

if [[ $# -gt 0 ]]; then
  echo "quickstart.sh takes no arguments: it makes .venv, data/quickstart and runs/quickstart, in a few minutes. Received: $*" >&2
  exit 2
fi
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$root/scripts/setup_env.sh"
cd "$root"
python=".venv/bin/python"
data="data/quickstart"
run="runs/quickstart"
remade=""  # set once a step ran: everything after it is made anew

# step NAME FILE COMMAND...: runs the command unless FILE, which the command writes last, is there.
step() {
  local name="$1" complete="$2"
  shift 2
  if [[ -z "$remade" && -f "$complete" ]]; then
    echo "$name: there already ($complete)"
    return
  fi
  remade=yes
  echo "$name ..."
  "$@" --overwrite
}

records() {
  step "TFRecords to $1" "$data/$1/manifest.json" "$python" scripts/create_pretraining_data.py \
    --input_files="$data/corpus/$1.txt" --output_dir="$data/$1" --vocab_file="$data/vocab.txt" \
    --max_seq_length=32 --max_predictions_per_seq=5 "${@:2}"
}

show_result() {
  "$python" - "$run/result.json" <<'END'
import json, sys
result = json.load(open(sys.argv[1]))
print()
for name in ("status", "reason", "step", "wall_secs", "eval_accuracy", "majority_accuracy", "target"):
    value = result.get(name)
    print(f"  {name:18}{round(value, 4) if isinstance(value, float) else value}")
END
}

is_success() {
  [[ -f "$run/result.json" ]] && grep -q '"status": *"success"' "$run/result.json"
}

step "Corpus of docstrings" "$data/corpus/corpus.json" "$python" scripts/build_corpus.py --output_dir="$data/corpus"
step "Vocabulary" "$data/vocab.txt" "$python" scripts/build_vocab.py \
  --input_files="$data/corpus/train.txt" --output_file="$data/vocab.txt" --vocab_size=4096
records train --dupe_factor=5 --num_shards=8
records eval --dupe_factor=1 --num_shards=1

if [[ -n "$remade" && -d "$run" ]]; then
  mv "$run" "$run-$(date +%Y%m%d-%H%M%S)"  # its weights belong to the old data
fi

code=0
if is_success; then
  echo "Training: reached its target already ($run/result.json)"
else
  echo "Training ..."
  "$python" train.py --flagfile=configs/quickstart.flags || code=$?
fi
if [[ "$code" != 2 && -f "$run/result.json" ]]; then
  show_result
  cat <<END

Report: $run/report.html (opens without a network)
Next:
  $python train.py --flagfile=configs/quickstart.flags --model_dir=runs/longer --num_train_epochs=4 --stop_threshold=0.3
  $python train.py --help
  ./scripts/test.sh
Try it: echo "the [MASK] of the file" | $python scripts/fill_mask.py --checkpoint=$run
END
fi
exit "$code"
