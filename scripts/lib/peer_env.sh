# Makes the environments of the implementations that ours is compared with.
# Sourced, never run itself; needs pick_python.sh sourced before it.
#
# They are kept apart from ours: torch and transformers are no dependency of the
# package. On Linux the index's torch may bring some 3 GB of CUDA libraries;
#   PEER_PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'
# avoids them. llama.cpp comes as source and is compiled for this processor,
# which takes a C++ compiler and some twenty minutes of one core.

readonly PEER_REQUIREMENTS='torch==2.13.0 transformers==4.57.6
  accelerate==1.15.0 gguf==0.19.0 sentencepiece==0.2.3 numpy>=2'
readonly LLAMA_REQUIREMENTS='llama-cpp-python==0.3.36'

# Makes DIR an environment of WHAT, by the first Python that can install the
# words of REQUIREMENTS; further arguments are pip's. A stamp, written last,
# tells a finished install from an interrupted one.
_make_peer_venv() {
  local what=$1 venv=$2 requirements=$3 stamp pythons version path
  shift 3
  stamp=$venv/peer.stamp
  if [ "$(cat "$stamp" 2>/dev/null)" = "$requirements" ]; then
    return 0
  fi
  pythons=$(usable_pythons) || return 1
  while read -r version path <&3; do
    printf 'Installing %s into %s (Python %s) ...\n' \
      "$what" "$venv" "$version" >&2
    if [ -d "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
      printf 'error: %s is in the way and no environment.\n' "$venv" >&2
      return 1
    fi
    rm -f "$stamp"
    # Unquoted on purpose: a list of words.
    if "$path" -m venv --clear "$venv" </dev/null &&
      "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "$@" $requirements >&2 </dev/null
    then
      printf '%s\n' "$requirements" >"$stamp"
      return 0
    fi
  done 3<<<"$pythons"
  printf 'error: no Python found here can install %s; set PYTHON=.\n' \
    "$what" >&2
  return 1
}

# Sets PEER_PYTHON, unless the user has, to an interpreter that has torch and
# transformers. PEER_VENV chooses where the environment is kept.
make_peer_env() {
  local venv
  if [ -n "${PEER_PYTHON:-}" ]; then
    return 0
  fi
  venv=${PEER_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/speculative/venv-peer}
  # Unquoted on purpose: a list of words.
  _make_peer_venv 'torch and transformers' "$venv" "$PEER_REQUIREMENTS" \
    ${PEER_PIP_ARGS:-} || return 1
  PEER_PYTHON=$venv/bin/python
}

# Sets LLAMA_PYTHON, unless the user has, to an interpreter that has llama.cpp's
# bindings. LLAMA_VENV chooses where the environment is kept, CMAKE_ARGS how
# llama.cpp is compiled.
make_llama_env() {
  local venv
  if [ -n "${LLAMA_PYTHON:-}" ]; then
    return 0
  fi
  venv=${LLAMA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/speculative/venv-llama}
  # Images are not read here.
  CMAKE_ARGS=${CMAKE_ARGS:--DGGML_NATIVE=ON -DLLAVA_BUILD=OFF} _make_peer_venv \
    'llama.cpp (compiling)' "$venv" "$LLAMA_REQUIREMENTS" \
    --no-binary llama-cpp-python || return 1
  LLAMA_PYTHON=$venv/bin/python
}
