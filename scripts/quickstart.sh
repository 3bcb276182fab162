#!/usr/bin/env bash
# From a fresh machine to text in one command.
#
#   bash scripts/quickstart.sh [--prompt "..."] [flags of speculative.run]
#
# Picks the newest working Python >= 3.11 (PYTHON= overrides), makes .venv in
# the checkout, installs, fetches a small model, streams an answer, and ends
# with a table of plain against speculative decoding. A second run installs
# nothing.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"

config=--config=$root/configs/quickstart.py
workdir=--workdir=$root/workdir/quickstart
flags=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    -h | --help)
      sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    --prompt)
      if [ "$#" -lt 2 ]; then
        printf 'error: --prompt needs a text, as in --prompt "Hello".\n' >&2
        exit 1
      fi
      flags+=("--config.generate.prompt=$2")
      shift
      ;;
    --prompt=*) flags+=("--config.generate.prompt=${1#--prompt=}") ;;
    --config | --workdir)
      printf 'error: write %s=VALUE, with an equals sign.\n' "$1" >&2
      exit 1
      ;;
    --config=*) config=$1 ;;
    --workdir=*) workdir=$1 ;;
    *) flags+=("$1") ;;
  esac
  shift
done

make_first_env "$root" "$root/.venv" ''

# -P: a directory named speculative where the user stands must not be imported;
# the checkout itself is on the path so that configs may import one another.
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} exec "$ENV_PYTHON" -P -m speculative.run "$config" "$workdir" \
  ${flags[@]+"${flags[@]}"}
