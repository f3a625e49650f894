#!/usr/bin/env bash
# Lint, format and types: ruff and mypy with the settings of pyproject.toml, in the versions of setup.py; then the size of the code base,
# which may not rise unseen (scripts/ratchet.py). ./scripts/check.sh --fix mends what ruff can.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin="${VENV:-.venv}/bin"
if [[ ! -x "$bin/ruff" || ! -x "$bin/mypy" ]]; then
  echo "check.sh: ruff and mypy are not in ${bin%/bin}. Run ./scripts/setup_env.sh --all." >&2
  exit 2
fi
case "${*:-}" in
  "") lint=() format=(--check) ;;
  --fix) lint=(--fix) format=() ;;
  *) echo "check.sh: $* is not --fix." >&2; exit 2 ;;
esac
"$bin/ruff" check --quiet ${lint[@]+"${lint[@]}"} .
"$bin/ruff" format --quiet ${format[@]+"${format[@]}"} .
"$bin/mypy" --no-error-summary --python-executable "$bin/python"
"$bin/python" scripts/ratchet.py
echo "Lint, format and types are clean."
