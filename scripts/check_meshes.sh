#!/usr/bin/env bash
# The same tokens on every mesh, and on two processes: runs the command line on
# forced CPU devices, mesh by mesh, and compares what it writes.
#
#   bash scripts/check_meshes.sh [--model=REFERENCE] [--prompts=FILE.jsonl]
#     [--num-prompts=N] [--max-new-tokens=N] [--out=results.json]
#
# Prints one Markdown table; exits with 1 where a token differs. Makes .venv;
# OURS_PYTHON, an interpreter that has the package, replaces it.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"

if [ -z "${OURS_PYTHON:-}" ]; then
  make_first_env "$root" "$root/.venv" ''
  OURS_PYTHON=$ENV_PYTHON
fi
exec "$OURS_PYTHON" "$root/scripts/check_meshes.py" "$@"
