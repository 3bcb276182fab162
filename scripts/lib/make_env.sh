# Makes virtual environments that hold this project. Sourced, never run itself.
#
# Needs pick_python.sh sourced before it. An environment carries a stamp of what
# was installed into it, written last, so an interrupted install is repeated and
# a finished one is not.

# make_env returns this when the fault is the Python's: another may do.
readonly ENV_WRONG_PYTHON=2

# Patterns of a failed install's log.
_DISK_FULL='No space left|Errno 28|Disk quota exceeded'
_NO_NETWORK='NewConnectionError|NameResolutionError|ProxyError|SSLError'
_NO_NETWORK+='|Max retries exceeded|ConnectTimeout|ReadTimeout'
_NO_NETWORK+='|Connection refused'
_NO_BUILD='No matching distribution|ResolutionImpossible'
_NO_BUILD+='|requires a different Python|[Ff]ailed (to build|building)'
_NO_BUILD+='|metadata-generation-failed'

# Prints what an environment must hold to be reused as it is.
_stamp_text() {
  local root=$1 version=$2 extras=$3
  printf 'python %s\nextras %s\nroot %s\nsetup.py %s\n' \
    "$version" "$extras" "$root" "$(cksum <"$root/setup.py")"
}

# Runs a command with its output in a log and one line of progress on stderr.
_run_with_progress() {
  local label=$1 log=$2 started=$SECONDS drawn=$SECONDS pid step code=0
  shift 2
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  # A background child ignores Ctrl-C, so it has to be told.
  trap 'kill "$pid" 2>/dev/null || true; exit 130' INT TERM
  [ -t 2 ] || printf '%s ...\n' "$label" >&2
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 2 ]; then
      step=$(sed -nE 's/^ *((Collecting|Downloading|Installing) [^ ]*).*/\1/p' \
        "$log" | tail -n 1)
      printf '\r\033[K%s  %ss  %.40s' \
        "$label" "$((SECONDS - started))" "$step" >&2
    elif [ $((SECONDS - drawn)) -ge 30 ]; then
      drawn=$SECONDS
      printf '%s  %ss\n' "$label" "$((SECONDS - started))" >&2
    fi
    sleep 0.2
  done
  wait "$pid" || code=$?
  trap - INT TERM
  [ ! -t 2 ] || printf '\r\033[K' >&2
  [ "$code" -ne 0 ] || printf '%s  done in %ss\n' \
    "$label" "$((SECONDS - started))" >&2
  return "$code"
}

# Turns a failed install's log into one line and a return code.
_explain_failure() {
  local version=$1 log=$2 reason
  if grep -qE "$_DISK_FULL" "$log"; then
    printf 'error: the disk is full; free about 2 GB (log: %s).\n' "$log" >&2
    return 1
  fi
  if grep -qE "$_NO_NETWORK" "$log"; then
    printf 'error: the package index cannot be reached; %s (log: %s).\n' \
      'check the network and run this again' "$log" >&2
    return 1
  fi
  reason=$(grep -iE '^ *error' "$log" | head -n 1 || true)
  [ -n "$reason" ] || reason=$(tail -n 1 "$log")
  if grep -qE "$_NO_BUILD" "$log"; then
    printf 'Python %s cannot install the packages: %s (log: %s)\n' \
      "$version" "$reason" "$log" >&2
    return "$ENV_WRONG_PYTHON"
  fi
  printf 'error: the install failed: %s (log: %s).\n' "$reason" "$log" >&2
  return 1
}

# Makes DIR a virtual environment of PYTHON with the project and its extras.
#
# Reuses a healthy environment of the same version, and does nothing at all when
# its stamp is the wanted one. Returns ENV_WRONG_PYTHON when another Python may
# do better, 1 when none would.
make_env() {
  local root=$1 dir=$2 version=$3 python=$4 extras=$5 log stamp said code=0
  log=$dir/install.log
  stamp=$dir/speculative.stamp
  case "$(probe_python "$dir/bin/python")" in
    "usable $version "*) ;;
    *)
      if [ -n "$(ls -A "$dir" 2>/dev/null)" ] && [ ! -f "$dir/pyvenv.cfg" ]
      then
        printf 'error: %s is in the way and no environment; move it.\n' \
          "$dir" >&2
        return 1
      fi
      if ! mkdir -p "$dir" 2>/dev/null || [ ! -w "$dir" ]; then
        printf 'error: %s cannot be written; use a writable checkout.\n' \
          "$dir" >&2
        return 1
      fi
      if ! said=$("$python" -m venv --clear "$dir" 2>&1 </dev/null); then
        if printf '%s\n' "$said" | grep -qE "$_DISK_FULL"; then
          printf 'error: the disk is full; free about 2 GB for %s.\n' \
            "$dir" >&2
          return 1
        fi
        printf 'Python %s cannot make an environment: %s\n' \
          "$version" "$(printf '%s\n' "$said" | tail -n 1)" >&2
        return "$ENV_WRONG_PYTHON"
      fi
      ;;
  esac
  if [ "$(cat "$stamp" 2>/dev/null)" = \
    "$(_stamp_text "$root" "$version" "$extras")" ]; then
    return 0
  fi
  rm -f "$stamp"
  # An environment made by another tool may come without pip.
  "$dir/bin/python" -m pip --version >/dev/null 2>&1 </dev/null ||
    "$dir/bin/python" -m ensurepip >/dev/null 2>&1 </dev/null || true
  # PIP_USER=1, set on some machines, is refused inside an environment.
  _run_with_progress "Installing into ${dir##*/} (Python $version)" "$log" \
    env PIP_USER=0 "$dir/bin/python" -m pip install --no-input \
    --disable-pip-version-check --progress-bar off \
    --editable "$root${extras:+[$extras]}" || code=$?
  if [ "$code" -ne 0 ]; then
    _explain_failure "$version" "$log"
    return
  fi
  _stamp_text "$root" "$version" "$extras" >"$stamp"
}

# Makes the environment of the first 'VERSION PATH' line that can have one.
_make_env_of() {
  local root=$1 template=$2 extras=$3 pythons=$4 version path dir code
  while read -r version path <&3; do
    dir=${template//@/3.$(minor_of "$version")}
    code=0
    make_env "$root" "$dir" "$version" "$path" "$extras" || code=$?
    if [ "$code" -eq 0 ]; then
      ENV_PYTHON=$dir/bin/python
      ENV_VERSION=$version
    fi
    [ "$code" -eq "$ENV_WRONG_PYTHON" ] || return "$code"
  done 3<<<"$pythons"
  return "$ENV_WRONG_PYTHON"
}

# Makes an environment of the newest usable Python whose install succeeds.
#
# '@' in DIR stands for the Python's version, 3.13. Without it, and without
# PYTHON, a healthy environment already there decides which Python it is. Sets
# ENV_PYTHON to the environment's interpreter and ENV_VERSION to its version.
make_first_env() {
  local root=$1 template=$2 extras=$3 pythons code=0 there
  there=$(probe_python "$template/bin/python")
  case "${PYTHON:-}$there" in
    'usable '*)
      _make_env_of "$root" "$template" "$extras" "${there#usable }" || code=$?
      [ "$code" -eq "$ENV_WRONG_PYTHON" ] || return "$code"
      ;;
  esac
  pythons=$(usable_pythons) || return 1
  code=0
  _make_env_of "$root" "$template" "$extras" "$pythons" || code=$?
  if [ "$code" -eq "$ENV_WRONG_PYTHON" ]; then
    printf 'error: no Python found here can install the packages; %s\n' \
      'set PYTHON= to another one, 3.11 or newer.' >&2
  fi
  return "$code"
}
