# Makes the environment of the implementation that ours is compared with.
# Sourced, never run itself; needs pick_python.sh sourced before it.
#
# It is kept apart from ours: torch and transformers are no dependency of the
# package. On Linux the index's torch may bring some 3 GB of CUDA libraries;
#   PEER_PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'
# avoids them.

readonly PEER_REQUIREMENTS='torch==2.13.0 transformers==4.57.6
  accelerate==1.15.0 gguf==0.19.0 sentencepiece==0.2.3 numpy>=2'

# Sets PEER_PYTHON, unless the user has, to an interpreter that has the above.
#
# PEER_VENV chooses where the environment is kept. A stamp, written last, tells
# a finished install from an interrupted one.
make_peer_env() {
  local venv stamp pythons version path
  if [ -n "${PEER_PYTHON:-}" ]; then
    return 0
  fi
  venv=${PEER_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/speculative/venv-peer}
  stamp=$venv/peer.stamp
  PEER_PYTHON=$venv/bin/python
  if [ "$(cat "$stamp" 2>/dev/null)" = "$PEER_REQUIREMENTS" ]; then
    return 0
  fi
  pythons=$(usable_pythons) || return 1
  while read -r version path <&3; do
    printf 'Installing torch and transformers into %s (Python %s) ...\n' \
      "$venv" "$version" >&2
    if [ -d "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ]; then
      printf 'error: %s is in the way and no environment.\n' "$venv" >&2
      return 1
    fi
    rm -rf "$venv"
    # Unquoted on purpose: both are lists of words.
    if "$path" -m venv "$venv" </dev/null &&
      "$PEER_PYTHON" -m pip install --quiet --disable-pip-version-check \
        ${PEER_PIP_ARGS:-} $PEER_REQUIREMENTS >&2 </dev/null
    then
      printf '%s\n' "$PEER_REQUIREMENTS" >"$stamp"
      return 0
    fi
  done 3<<<"$pythons"
  printf 'error: no Python found here can install %s; set PYTHON=.\n' \
    'torch and transformers' >&2
  return 1
}
