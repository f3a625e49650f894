#!/usr/bin/env bash
# Sets up the environment, with everything that the tests need, and runs the fast tests. Arguments go to pytest: ./scripts/test.sh -k lamb, ./scripts/test.sh -m slow, ./scripts/test.sh -m nightly
# One worker a core, eight at most: with slow tests each takes up to 5 GB.
# --stack=tf215|modern, --python=PYTHON and --venv=FOLDER go to setup_env.sh: without them the stack that .venv has.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE  # else each of hundreds of processes compiles the same modules
venv=".venv" setup=() tests=()
for argument in "$@"; do
  case "$argument" in
    --stack=* | --python=* | --venv=*) setup+=("$argument") ;;
    *) tests+=("$argument") ;;
  esac
  [[ "$argument" != --venv=* ]] || venv="${argument#*=}"
done
./scripts/setup_env.sh --all ${setup[@]+"${setup[@]}"}
exec "$venv/bin/python" -m pytest -m "not slow and not nightly and not gpu" -n "$(getconf _NPROCESSORS_ONLN)" --maxprocesses 8 \
  --dist worksteal ${tests[@]+"${tests[@]}"}
