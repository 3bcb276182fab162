#!/usr/bin/env bash
# Plain greedy decoding against transformers' generate: same machine, same
# weights, same prompts, the two taking turns prompt by prompt.
#
#   bash scripts/bench_vs_transformers.sh [--prompts=FILE.jsonl] [--limit=N]
#     [--model=REFERENCE] [--ours=auto,float32] [--peer=float32,bfloat16]
#     [--repeats=N] [--threads=N] [--out=results.json]
#
# Prints one Markdown table. Makes an environment for the peer (see
# scripts/lib/peer_env.sh) and uses .venv for ours; OURS_PYTHON, an interpreter
# that has the package, replaces the latter.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"
. "$root/scripts/lib/peer_env.sh"

make_peer_env
if [ -z "${OURS_PYTHON:-}" ]; then
  make_first_env "$root" "$root/.venv" ''
  OURS_PYTHON=$ENV_PYTHON
fi
exec "$OURS_PYTHON" "$root/scripts/bench_vs_transformers.py" \
  --peer-python="$PEER_PYTHON" "$@"
