# What benchmark scripts check before they measure anything. Sourced.

# Refuses files that are not there; empty names are of flags not given.
need_files() {
  local file
  for file in "$@"; do
    if [ -n "$file" ] && [ ! -e "$file" ]; then
      printf 'error: there is no %s; name a file that exists.\n' "$file" >&2
      return 1
    fi
  done
}

# Refuses a flag that is not a whole number: its name, its value.
need_number() {
  case "$2" in
    '' | *[!0-9]*)
      printf 'error: %s is %s; it needs to be a whole number.\n' "$1" "'$2'" >&2
      return 1
      ;;
  esac
}

# Begins or goes on in a directory: its path, and what its runs are of. Runs of
# something else would be shown as these.
begin_out() {
  local out=$1 said=$2 found
  if [ -f "$out/of.txt" ] && [ "$(cat "$out/of.txt")" = "$said" ]; then
    return 0
  fi
  for found in "$out"/*/results.json; do
    if [ -e "$found" ]; then
      printf 'error: %s holds runs of other files, flags or settings; %s\n' \
        "$out" 'choose another --out.' >&2
      return 1
    fi
  done
  mkdir -p "$out"
  # Picked for what was asked for before.
  rm -f "$out/prompts.jsonl"
  printf '%s\n' "$said" >"$out/of.txt"
}
