#!/usr/bin/env bash
# What a trained draft brings: plain decoding against the draft, alone and with
# look-up (hybrid), on code and on conversation, greedy and sampled.
#
#   bash scripts/bench_draft.sh --code=HumanEval.jsonl.gz \
#     --chat=mt_bench_question.jsonl [--draft=REFERENCE] [--out=DIR]
#     [flags of speculative.run]
#
# The first 40 prompts of each file x 128 tokens, 40 others are predicted from.
# Of each file and sampler one process of configs/draft_smollm2.py:benchmark, in
# which settings take turns; what has been measured in DIR is not measured
# again. Makes .venv; OURS_PYTHON, an interpreter that has the package, replaces
# it.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"
. "$root/scripts/lib/bench_out.sh"

code='' chat='' draft='package://smollm2_135m_instruct'
out=$root/workdir/bench_draft
flags=()
for flag in "$@"; do
  case "$flag" in
    --code=*) code=${flag#*=} ;;
    --chat=*) chat=${flag#*=} ;;
    --draft=*) draft=${flag#*=} ;;
    --out=*) out=${flag#*=} ;;
    *) flags+=("$flag") ;;
  esac
done
if [ -z "$code" ] || [ -z "$chat" ]; then
  printf 'error: --code=FILE and --chat=FILE are needed; %s\n' \
    'name files of prompts.' >&2
  exit 1
fi
need_files "$code" "$chat"
# What was measured of another draft, with other flags or of other settings is
# not shown as this.
settings="('name=draft and look-up,kind=hybrid','name=draft,kind=lm')"
begin_out "$out" "$draft $code $chat ${flags[*]-} $settings"
if [ -z "${OURS_PYTHON:-}" ]; then
  make_first_env "$root" "$root/.venv" ''
  OURS_PYTHON=$ENV_PYTHON
fi
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

for prompts in code chat; do
  for sampler in greedy sampled; do
    dir=$out/$prompts.$sampler
    [ ! -f "$dir/results.json" ] || continue
    rm -rf "$dir"
    sampling=()
    [ "$sampler" = greedy ] || sampling=(
      --config.decode.temperature=0.8 --config.decode.top_p=0.95)
    "$OURS_PYTHON" -m speculative.run \
      --config="$root/configs/draft_smollm2.py:benchmark" --workdir="$dir" \
      --config.drafter.model="$draft" --config.data.prompts="${!prompts}" \
      --config.bench.settings="$settings" \
      ${sampling[@]+"${sampling[@]}"} ${flags[@]+"${flags[@]}"}
  done
done
"$OURS_PYTHON" "$root/scripts/bench_draft.py" "$out"
