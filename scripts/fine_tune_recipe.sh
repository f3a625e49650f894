# Sourced by fine_tune_squad.sh and fine_tune_glue.sh: which flags a model is fine-tuned with.

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 2
}

# Prints the names of the models that there are: base, large, mini, ...
models() {
  local path name
  for path in "configs/$1"_*.flags configs/models/*.json; do
    name="$(basename "${path%.*}")"
    name="${name#"$1"_}"
    name="${name#bert_}"
    echo "${name%_v2}"
  done | sort -u | paste -sd , | sed 's/,/, /g'
}

# recipe TASK MODEL VERSION: prints the flags of configs/TASK_MODEL(VERSION).flags; a model without a file of its own takes the one of base.
recipe() {
  local sizes
  if [[ -f "configs/$1_$2$3.flags" ]]; then
    echo "--flagfile=configs/$1_$2$3.flags"
    return
  fi
  for sizes in "configs/models/bert_$2.json" "configs/models/$2.json"; do
    if [[ -f "$sizes" ]]; then
      echo "--flagfile=configs/$1_base$3.flags --bert_config_file=$sizes"
      return
    fi
  done
  fail "the model $2 is not one of $(models "$1")."
}

# is_plan FLAGS...: whether --plan is among them, which needs neither data nor weights.
is_plan() {
  [[ " $* " == *" --plan "* || " $* " == *" --plan=true "* ]]
}
