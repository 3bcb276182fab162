# Finds the Pythons that this project can run on. Sourced, never run itself.
#
# A Python is usable when it runs, is a released CPython of at least 3.11 and
# has what a virtual environment and the packages need. Whether wheels exist
# for it is known only after an install: see make_env.sh.
#
# Written for bash 3.2, the one that macOS ships.

# Words that start 'usable' or 'unusable', the version, then path or reason.
# Old enough in syntax for any Python 3 to say that it is too old.
_PROBE='
import sys
version = "%d.%d.%d" % sys.version_info[:3]
def refuse(why):
  print("unusable %s %s" % (version, why))
  sys.exit(0)
if sys.version_info < (3, 11):
  refuse("is older than 3.11")
if sys.version_info[3] != "final":
  refuse("is a pre-release")
if sys.implementation.name != "cpython":
  refuse("is not CPython")
for module in ("ctypes", "ensurepip", "ssl", "venv", "zlib"):
  try:
    __import__(module)
  except ImportError:
    refuse("lacks the module " + module)
import sysconfig
if sysconfig.get_config_var("Py_GIL_DISABLED"):
  refuse("is a free-threaded build")
base = getattr(sys, "_base_executable", None) or sys.executable
print("usable %s %s" % (version, base))
'

# Prints 'usable VERSION PATH' or 'unusable VERSION REASON' for a command.
#
# It is run to find out, because a version manager's shim may exist for a
# version that is not active, and then fails.
probe_python() {
  local said
  said=$("$1" -I -c "$_PROBE" </dev/null 2>/dev/null | tail -n 1) || said=''
  case "$said" in
    'usable '* | 'unusable '*) printf '%s\n' "$said" ;;
    *) printf 'unusable %s does not run\n' "$1" ;;
  esac
}

# Prints the path of every python3 worth a try, those on PATH first.
python_candidates() {
  local home=${HOME:-/nonexistent} data dir file dirs
  data=${XDG_DATA_HOME:-$home/.local/share}
  IFS=: read -r -a dirs <<<"${PATH:-}"
  for dir in ${dirs[@]+"${dirs[@]}"}; do
    for file in "$dir"/python3 "$dir"/python3.1[1-9] "$dir"/python3.[2-9][0-9]
    do
      if [ -x "$file" ]; then printf '%s\n' "$file"; fi
    done
  done
  for file in \
    "${PYENV_ROOT:-$home/.pyenv}"/versions/*/bin/python3 \
    "${UV_PYTHON_INSTALL_DIR:-$data/uv/python}"/*/bin/python3 \
    "$data"/mise/installs/python/*/bin/python3 \
    "$home"/.asdf/installs/python/*/bin/python3 \
    "${CONDA_PREFIX:-/nonexistent}"/bin/python3 \
    "$home"/{miniconda3,miniforge3,mambaforge,anaconda3}/bin/python3 \
    "$home"/{miniconda3,miniforge3,mambaforge,anaconda3}/envs/*/bin/python3
  do
    if [ -x "$file" ]; then printf '%s\n' "$file"; fi
  done
}

# Prints 'VERSION PATH' lines, newest first, one a version; fails with one line.
#
# PYTHON, a command name or a path, replaces the search.
usable_pythons() {
  local file found usable
  if [ -n "${PYTHON:-}" ]; then
    found=$(probe_python "$PYTHON")
  else
    found=$(python_candidates | while read -r file; do
      probe_python "$file"
    done)
  fi
  usable=$(
    printf '%s\n' "$found" | sed -n 's/^usable //p' | awk '!seen[$1]++' |
      sort -t . -k 1,1nr -k 2,2nr -k 3,3nr
  )
  if [ -n "$usable" ]; then
    printf '%s\n' "$usable"
    return 0
  fi
  local why
  why=$(printf '%s\n' "$found" | sed -n 's/^unusable //p' | sort -u |
    awk '{ line = line (NR > 1 ? "; " : "") $0 } END { print line }')
  if [ -n "${PYTHON:-}" ]; then
    printf 'error: PYTHON=%s cannot be used: %s. %s\n' "$PYTHON" "$why" \
      'Name a Python >= 3.11 with venv, or unset PYTHON.' >&2
  else
    printf 'error: no working Python >= 3.11 found (%s). %s\n' \
      "${why:-none on PATH}" 'Install one with venv, or set PYTHON=.' >&2
  fi
  return 1
}

# Prints the second number of a version, 13 for 3.13.0.
minor_of() {
  printf '%s\n' "$1" | cut -d . -f 2
}
