#!/usr/bin/env bash
# What drafts retrieved from a datastore bring (REST, arXiv:2311.08252): plain
# decoding against look-up, the datastore, the text so far and both, greedy and
# sampled; and how it depends on the size of the tree, how its nodes are chosen,
# the longest match and the size of the datastore.
#
#   bash scripts/bench_rest.sh --store=FILE.store --code=HumanEval.jsonl.gz \
#     [--size-store=FILE.store ...] \
#     [--chat=mt_bench_question.jsonl [--chat-store=FILE.store]] \
#     [--draft=REFERENCE] [--cascade-draft=REFERENCE] [--target=REFERENCE] \
#     [--prompts=40] [--study-prompts=10] [--tokens=128] [--out=DIR] \
#     [flags of speculative.run]
#
# A datastore is made with configs/rest_code.py:build, a smaller one of it with
# config.datastore.mode=reduce. The table is of the first prompts of each file,
# studies are greedy, search the datastore alone, and take the prompts of middle
# length, for which few programs are compiled. Each step is one process in which
# settings take turns; what has been measured in DIR is not measured again. Ends
# with tables and, where matplotlib is installed, DIR/rest.png. Makes .venv;
# OURS_PYTHON, an interpreter that has the package, replaces it.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$root/scripts/lib/pick_python.sh"
. "$root/scripts/lib/make_env.sh"
. "$root/scripts/lib/bench_out.sh"

store='' code='' chat='' chat_store='' draft='' cascade='' target=''
prompts=40 study_prompts=10 tokens=128
out=$root/workdir/bench_rest
sizes=() flags=() steps=()
for flag in "$@"; do
  case "$flag" in
    --store=*) store=${flag#*=} ;;
    --size-store=*) sizes+=("${flag#*=}") ;;
    --code=*) code=${flag#*=} ;;
    --chat=*) chat=${flag#*=} ;;
    --chat-store=*) chat_store=${flag#*=} ;;
    --draft=*) draft=${flag#*=} ;;
    --cascade-draft=*) cascade=${flag#*=} ;;
    --target=*) target=${flag#*=} ;;
    --prompts=*) prompts=${flag#*=} ;;
    --study-prompts=*) study_prompts=${flag#*=} ;;
    --tokens=*) tokens=${flag#*=} ;;
    --out=*) out=${flag#*=} ;;
    *) flags+=("$flag") ;;
  esac
done
if [ -z "$store" ] || [ -z "$code" ]; then
  printf 'error: --store=FILE and --code=FILE are needed; %s\n' \
    'name a datastore and a file of prompts.' >&2
  exit 1
fi
# As the paper has it; a match in the text then counts as four.
rest=retrieval.matches=longest,retrieval.context_weight=4
table=(
  'name=look-up 4,kind=lookup,num_draft_tokens=4'
  'name=datastore 7,kind=retrieval,retrieval.sources=store,num_draft_tokens=7'
  'name=both 7,kind=retrieval,num_draft_tokens=7'
  "name=both 7 of REST,kind=retrieval,$rest,num_draft_tokens=7"
  'name=both 24,kind=retrieval,num_draft_tokens=24'
  'name=chain of both 7,kind=retrieval,shape=chain,num_draft_tokens=7'
)
with_draft=()
if [ -n "$draft" ]; then
  small=kind=hybrid,levels=2,width=3,num_draft_tokens=4,hybrid_tokens=12
  both='hybrid_source=retrieval,retrieval.buckets=()'
  table+=(
    "name=draft 4 or look-up 12,$small,hybrid_source=lookup,max_ngram=8"
    "name=draft 4 or both 12,$small,$both"
  )
  with_draft=(--config.drafter.kind=hybrid --config.drafter.model="$draft"
    --config.drafter.hybrid_source=retrieval)
fi
study=()
# Of the paper's method.
for nodes in 2 4 7 15 24 64; do
  study+=("name=nodes $nodes,num_draft_tokens=$nodes")
done
random=retrieval.selection=random
for nodes in 7 24; do
  study+=("name=random $nodes,$random,num_draft_tokens=$nodes")
done
# The longest of 16 is the default, and measured above.
for longest in 1 2 3 4 8; do
  study+=("name=longest $longest,retrieval.max_ngram=$longest")
done
for nodes in 7 24; do
  study+=("name=shorter $nodes,retrieval.matches=backoff,num_draft_tokens=$nodes")
done
beside=('name=model 4,kind=lm,num_draft_tokens=4'
  'name=cascade 4,num_draft_tokens=4')

need_files "$store" "$code" "$chat" "$chat_store" ${sizes[@]+"${sizes[@]}"}
need_number --prompts "$prompts"
need_number --study-prompts "$study_prompts"
need_number --tokens "$tokens"
# What was measured of other files, with other flags or of other settings is not
# shown as this; sizes are added one by one.
said="$store $code $chat $chat_store $draft $cascade $target $prompts"
said+=" $study_prompts $tokens ${flags[*]-} ${table[*]} ${study[*]}"
begin_out "$out" "$said ${beside[*]}"
if [ -z "${OURS_PYTHON:-}" ]; then
  make_first_env "$root" "$root/.venv" ''
  OURS_PYTHON=$ENV_PYTHON
fi
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
if [ -n "$target" ]; then
  flags=(--config.target.model="$target" ${flags[@]+"${flags[@]}"})
fi

# Measures settings in one process: name of the step, file of prompts, how many,
# datastore, then settings up to '--' and flags.
measure() {
  local dir=$out/$1 file=$2 num=$3 from=$4 settings=''
  steps+=("$1")
  shift 4
  [ ! -f "$dir/results.json" ] || return 0
  while [ "$1" != -- ]; do
    settings+="'$1',"
    shift
  done
  shift
  rm -rf "$dir"
  "$OURS_PYTHON" -m speculative.run \
    --config="$root/configs/rest_code.py:benchmark" --workdir="$dir" \
    --config.drafter.store="$from" --config.bench.settings="($settings)" \
    --config.data.prompts="$file" --config.data.num_prompts="$num" \
    --config.decode.max_new_tokens="$tokens" --config.bench.repeats=1 \
    --config.bench.calibration_prompts=0 "$@" ${flags[@]+"${flags[@]}"}
}

for kind in code chat; do
  file=${!kind} from=$store
  [ -n "$file" ] || continue
  [ "$kind" = code ] || from=${chat_store:-$store}
  for sampler in greedy sampled; do
    sampling=()
    [ "$sampler" = greedy ] || sampling=(
      --config.decode.temperature=0.8 --config.decode.top_p=0.95)
    measure "$kind.$sampler" "$file" "$prompts" "$from" "${table[@]}" -- \
      ${with_draft[@]+"${with_draft[@]}"} ${sampling[@]+"${sampling[@]}"}
    [ -z "$cascade" ] ||
      measure "$kind.$sampler.cascade" "$file" "$prompts" "$from" \
        "${beside[@]}" -- \
        --config.drafter.kind=cascade --config.drafter.model="$cascade" \
        --config.drafter.hybrid_source=retrieval --config.drafter.shape=chain \
        --config.decode.num_draft_tokens=4 ${sampling[@]+"${sampling[@]}"}
  done
done

middle=$out/prompts.jsonl
if [ ! -f "$middle" ]; then
  "$OURS_PYTHON" "$root/scripts/bench_rest.py" pick \
    "$code" "$study_prompts" "$middle"
fi
alone=(--config.drafter.retrieval.sources=store
  --config.drafter.retrieval.matches=longest
  '--config.drafter.retrieval.buckets=()')
measure study "$middle" 0 "$store" "${study[@]}" -- "${alone[@]}"
for size in ${sizes[@]+"${sizes[@]}"}; do
  sum=$(printf '%s' "$size" | cksum | cut -d' ' -f1)
  measure "size.${size##*/}.$sum" "$middle" 0 "$size" \
    'name=nodes 24,num_draft_tokens=24' -- "${alone[@]}"
done
"$OURS_PYTHON" "$root/scripts/bench_rest.py" show "$out" "${steps[@]}"
