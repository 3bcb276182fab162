#!/usr/bin/env bash
# Lint, format check and tests, on a fresh machine too.
#
#   bash scripts/test.sh [arguments of pytest]
#
# PYTHON= selects the Python; otherwise it is the newest that works. EXTRAS=
# selects what of setup.py is installed (dev,train); with tpu among them, tests
# that compile for a TPU run as well. Paths among the arguments count from the
# root of the checkout. The environment is kept in .venv-test-VERSION and made
# anew only when setup.py or the extras change.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"
cd -- "$root"

make_first_env "$root" "$root/.venv-test-@" "${EXTRAS:-dev,train}"

sources=()
for path in speculative tests scripts configs setup.py; do
  if [ -e "$path" ]; then sources+=("$path"); fi
done
failed=''
printf '== lint (ruff), Python %s\n' "$ENV_VERSION"
"$ENV_PYTHON" -m ruff check "${sources[@]}" || failed+=' lint'
printf '== format (pyink)\n'
"$ENV_PYTHON" -m pyink --check --quiet --diff "${sources[@]}" ||
  failed+=' format'
if [ -n "$failed" ]; then
  # A closing line of passed tests must not hide this.
  printf 'failed:%s; the tests were not run.\n' "$failed" >&2
  exit 1
fi
printf '== tests\n'
# One process a core; the tests of a file stay together, for they share what
# they have compiled. A process that dies ends the run: in the place of a new
# one, pytest-xdist may wait for ever.
export PYTEST_ADDOPTS="-n auto --dist loadfile --max-worker-restart 0 \
${PYTEST_ADDOPTS:-}"
exec "$ENV_PYTHON" -m pytest "$@" </dev/null
