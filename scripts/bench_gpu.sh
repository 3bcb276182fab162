#!/usr/bin/env bash
# What rounds cost on the GPU at hand, with models of real shapes and random
# weights, beside transformers' plain generate.
#
#   bash scripts/bench_gpu.sh [--shape=8b|tiny] [--minutes=8] [--out=DIR]
#     [--acceptance=0.8] [--temperature=1] [--seed=0]
#     [--peer=transformers|none]
#
# Asks nothing and prints one table last; the minutes count from when all is
# installed. Drafted tokens are kept by a seeded coin: set acceptance, not
# lossless, for timing. Makes .venv-cuda, or .venv for --shape=tiny, which needs
# no GPU; OURS_PYTHON, an interpreter that has the package, replaces either.
# Makes an environment for the peer (see scripts/lib/peer_env.sh); where that
# fails the rest goes on.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"
. "$root/scripts/lib/peer_env.sh"

shape=8b peer='' before=''
for flag in "$@"; do
  # As Python reads flags, the value may be the next word.
  case "$before" in
    --shape | --peer) flag=$before=$flag ;;
  esac
  before=$flag
  case "$flag" in
    --shape=*) shape=${flag#*=} ;;
    --peer=*) peer=${flag#*=} ;;
  esac
done
venv=$root/.venv-cuda extras=cuda
if [ "$shape" = tiny ]; then
  venv=$root/.venv extras=''
  peer=${peer:-none}
fi
if [ -z "${OURS_PYTHON:-}" ]; then
  make_first_env "$root" "$venv" "$extras"
  OURS_PYTHON=$ENV_PYTHON
fi
if [ "${peer:-transformers}" = transformers ]; then
  make_peer_env || PEER_PYTHON=''
fi
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
# What is compiled is kept for the next call.
cache=$root/workdir/bench_gpu_compiled
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$cache}
exec "$OURS_PYTHON" "$root/scripts/bench_gpu.py" "$@" \
  --peer-python="${PEER_PYTHON:-}"
