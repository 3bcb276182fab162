#!/usr/bin/env bash
# Tokens per round under token-level and block verification: the same
# models, prompts and seeds.
#
#   bash scripts/bench_verification.sh [--prompts=FILE.jsonl] [--num-prompts=N]
#     [--seeds=N] [--model=REFERENCE] [--draft=REFERENCE|target]
#     [--draft-layers=N] [--num-draft-tokens=J] [--max-new-tokens=N]
#     [--dtype=auto] [--batch-size=N] [--out=results.json]
#
# Prints one Markdown table. Makes .venv; OURS_PYTHON, an interpreter that has
# the package, replaces it.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"

if [ -z "${OURS_PYTHON:-}" ]; then
  make_first_env "$root" "$root/.venv" ''
  OURS_PYTHON=$ENV_PYTHON
fi
exec "$OURS_PYTHON" "$root/scripts/bench_verification.py" "$@"
