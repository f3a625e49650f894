#!/usr/bin/env bash
# Sets up the environment and runs the fast tests. Arguments go to pytest: ./scripts/test.sh -k lamb, ./scripts/test.sh -m slow
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$root/scripts/setup_env.sh"
cd "$root"
exec .venv/bin/python -m pytest -m "not slow" -n 2 --dist worksteal "$@"
