#!/usr/bin/env bash
# Makes the frozen references under tests/data again.
#
#   bash scripts/references.sh --smollm2=FILE.gguf --qwen=FILE.gguf
#
# They come from transformers, in an environment of its own (see
# scripts/lib/peer_env.sh for PEER_PYTHON, PEER_VENV and PEER_PIP_ARGS).
# llama.cpp, which gives a second opinion on token ids, is compiled only on
# request: WITH_LLAMA_CPP=1.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/peer_env.sh"

make_peer_env
if [ "${WITH_LLAMA_CPP:-0}" = 1 ]; then
  "$PEER_PYTHON" -m pip install --quiet "$LLAMA_REQUIREMENTS"
fi
exec "$PEER_PYTHON" "$root/scripts/make_references.py" "$@"
