#!/usr/bin/env bash
# Greedy decoding against transformers' generate (plain, look-up, an assistant)
# and, with --llama-cpp, against llama.cpp on the file as it is: same machine,
# weights, prompts, threads and number of tokens, everyone taking turns prompt
# by prompt.
#
#   bash scripts/bench_vs_transformers.sh [--llama-cpp] [--model=REFERENCE]
#     [--draft=REFERENCE] [--draft-dtype=auto|int8]
#     [--contestants=ours:plain,transformers:lookup,...]
#     [--setting=SIDE:NAME:FIELDS ...] [--ours=auto,float32]
#     [--peer=float32,bfloat16] [--prompts=FILE.jsonl] [--limit=N]
#     [--max-new-tokens=N] [--repeats=N] [--threads=N] [--out=results.json]
#
# Without --contestants: plain and look-up on every side; with a draft that is a
# GGUF file, as its own model on ours and as transformers' assistant; with
# another draft, ours beside look-up (hybrid). scripts/peer_contestants.py lists
# the settings. --setting adds one, its fields being those of a drafter of ours,
# of transformers' GenerationConfig, or of llama.cpp's look-up.
#
# Prints one Markdown table. With --out every turn is written down as it is
# taken, and a run that was stopped goes on where it was, if versions, machine
# and files are the same. Makes environments for the peers that take part (see
# scripts/lib/peer_env.sh) and uses .venv for ours; OURS_PYTHON, an interpreter
# that has the package, replaces the latter.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"
. "$root/scripts/lib/peer_env.sh"

flags=()
with_llama=no
contestants=
previous=
for flag in "$@"; do
  if [ "$previous" = --contestants ]; then
    contestants=$flag
  fi
  case "$flag" in
    --llama-cpp) with_llama=yes ;;
    *) flags+=("$flag") ;;
  esac
  case "$flag" in
    --contestants=*) contestants=${flag#*=} ;;
  esac
  previous=$flag
done
# Where nobody is named, transformers takes part.
case ",${contestants:-transformers:}" in
  *,transformers:*)
    make_peer_env
    flags=(--peer-python="$PEER_PYTHON" ${flags[@]+"${flags[@]}"})
    ;;
esac
if [ "$with_llama" = yes ]; then
  make_llama_env
  flags+=(--llama-python="$LLAMA_PYTHON")
fi
if [ -z "${OURS_PYTHON:-}" ]; then
  make_first_env "$root" "$root/.venv" ''
  OURS_PYTHON=$ENV_PYTHON
fi
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "$OURS_PYTHON" "$root/scripts/bench_vs_transformers.py" "${flags[@]}"
