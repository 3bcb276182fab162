"""Who is compared with whom, and the whole of it on a model of no size.

Peers are played by a small Python script: nothing here needs torch.
"""

import json
import os
import sys
import types

import pytest

from speculative.drafting import changes
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError


def test_settings_of_ours_are_drafters_and_one_is_the_quick_starts(
    peers, config_of
):
  base = DrafterConfig(kind='lm', model='package://smollm2_135m_instruct')
  found = {
      name: changes.parse(text, base)[1]
      for name, text in peers.contestants.SETTINGS['ours'].items()
      if text
  }
  assert [(n, d.kind, d.uses_model) for n, d in found.items()] == [
      ('lookup', 'lookup', False),
      ('lm', 'lm', True),
      ('hybrid', 'hybrid', True),
  ]
  config = config_of('/configs/draft_smollm2.py:benchmark')
  drafter = found['hybrid']
  assert drafter.num_draft_tokens == config.decode.num_draft_tokens
  for name in ('kind', 'model', 'shape', 'levels', 'width', 'max_ngram'):
    assert getattr(drafter, name) == config.drafter[name], name
  assert drafter.hybrid_tokens == config.drafter.hybrid_tokens


def _names(peers, draft='', has_llama_cpp=False):
  names = peers.contestants.default_names(
      draft=draft, has_llama_cpp=has_llama_cpp
  )
  return [name for name in names if not name.startswith('transformers:look')]


def test_who_takes_part_depends_on_the_draft(peers):
  plain = ['ours:plain', 'ours:lookup', 'transformers:plain']
  assert _names(peers) == plain
  assert _names(peers, draft='package://x') == [
      *plain[:2],
      'ours:hybrid',
      plain[2],
  ]
  assert _names(peers, draft='dir/x.gguf', has_llama_cpp=True) == [
      *plain[:2],
      'ours:lm',
      plain[2],
      'transformers:assistant',
      'transformers:assistant-constant',
      'llama.cpp:plain',
      'llama.cpp:lookup',
  ]


def _chosen(peers, *flags):
  args = peers.main.parse_args(['--model=x.gguf', '--peer-python=p', *flags])
  contestants, _ = peers.main.choose(args)
  return [str(c) for c in contestants]


def test_contestants_have_the_dtypes_of_their_side_or_one_of_their_own(peers):
  assert _chosen(
      peers,
      '--ours=auto,float32',
      '--llama-python=l',
      '--setting=ours:long:kind=lookup,num_draft_tokens=8',
      '--contestants=ours:long,transformers:plain:float32,llama.cpp:plain,'
      'ours:long:float32',
  ) == [
      'ours:long:auto',
      'ours:long:float32',
      'transformers:plain:float32',
      'llama.cpp:plain:native',
  ]
  assert all(
      name.startswith('transformers') for name in _chosen(peers, '--ours=none')
  )


@pytest.mark.parametrize(
    'flags, message',
    [
        (['--contestants=ours:quick'], "has 'ours:quick'; it needs to be of"),
        (['--contestants=mine:plain'], "has 'mine:plain'; it needs to be of"),
        (['--ours=none', '--peer=none'], 'names nobody'),
        (['--contestants=ours:lm'], 'ours:lm needs a draft model; set --draft'),
        (['--contestants=llama.cpp:plain'], 'environment; add --llama-cpp'),
        (['--model=hf://x/y'], 'transformers reads GGUF files only'),
        (
            ['--contestants=transformers:assistant', '--draft=package://x'],
            "'package://x', which transformers cannot read",
        ),
        (['--setting=ours:fast'], 'SIDE:NAME:FIELDS'),
        (['--setting=mine:fast:a=1'], 'SIDE:NAME:FIELDS'),
        (['--setting=ours:lookup:kind=lookup'], "has a setting 'lookup'"),
        (
            ['--setting=ours:x:num_draft_tokens=4', '--contestants=ours:x'],
            'ours:x is .* drafts nothing; name a kind',
        ),
        (
            [
                '--setting=transformers:x:mine',
                '--contestants=transformers:x',
            ],
            "transformers:x: 'mine' is no field with its value",
        ),
        (['--ours=float64'], "'--ours=float64' .* one of auto, float32, bfl"),
        (['--peer=float32,'], "has the dtype ''; transformers needs it"),
        (['--contestants=ours:plain:'], "has the dtype ''; ours needs it"),
        (['--contestants=transformers:plain:auto'], 'one of float32, bfloat16'),
        (
            ['--contestants=llama.cpp:plain:float32', '--llama-python=l'],
            "dtype 'float32', but llama.cpp takes none",
        ),
        (['--draft-dtype=int4'], "'int4'; it needs to be one of auto"),
        (['--limit=-1'], '--limit is -1; it needs to be at least 0'),
        (['--threads=-1'], '--threads is -1; it needs to be at least 0'),
        (['--threads=9999'], '--threads is 9999, but only .* cores'),
        (['--max-new-tokens=1'], '--max-new-tokens is 1; .* at least 2'),
        (['--repeats=0'], '--repeats is 0; it needs to be at least 1'),
        (['--out=.'], "'.', a directory; name a file"),
    ],
)
def test_who_cannot_take_part_is_named(peers, flags, message):
  with pytest.raises(UserError, match=message) as caught:
    _chosen(peers, *flags)
  assert '\n' not in str(caught.value)


def test_ours_is_measured_beside_a_peer(
    peers, fake_peer, tmp_path, monkeypatch, capsys
):
  # An interpreter that runs the fake whatever it is told to run.
  python = tmp_path / 'python'
  python.write_text(
      f'#!/bin/sh\nshift\nexec {sys.executable} {fake_peer.script} "$@"'
  )
  python.chmod(0o755)
  monkeypatch.setattr(peers.contestants, 'is_gguf', lambda reference: True)
  monkeypatch.setattr(
      peers.main, 'sources', types.SimpleNamespace(resolve=lambda x: x)
  )
  # Of one bucket, so that everyone compiles once.
  prompts = tmp_path / 'prompts.jsonl'
  prompts.write_text('{"prompt": "abcabc"}\n{"prompt": "one two "}\n')
  out = tmp_path / 'new' / 'found.json'
  flags = [
      '--model=random://tiny',
      f'--prompts={prompts}',
      '--draft=random://tiny_draft',
      '--ours=float32',
      '--peer=float32',
      f'--peer-python={python}',
      '--contestants=ours:plain,ours:lookup,ours:lm,transformers:plain',
      '--max-new-tokens=12',
      '--repeats=1',
      f'--out={out}',
  ]
  peers.main.main(flags)
  found = json.loads(out.read_text())
  plain, lookup, lm, peer = found['rows']
  for row in (plain, lookup, lm):
    assert row['tokens/equal_prompts'] == row['tokens/prompts'] == 2
  assert plain['decode/tokens_per_round'] == 1
  assert lookup['decode/tokens_per_round'] >= 1
  assert peer['tokens/equal_prompts'] == 0
  assert peer['env/fake'] == '7'
  assert len(found['turns']) == 4 * 2
  assert all(len(t['token_ids']) == 12 for t in found['turns'])
  assert found['settings']['ours:lm:float32'].startswith('kind=lm')
  assert [p.name for p in out.parent.iterdir()] == ['found.json']
  assert 'our best ÷ best of transformers' in capsys.readouterr().out


def test_a_mistake_is_one_line_before_anything_is_loaded(
    peers, tmp_path, capsys
):
  flags = ['--model=random://tiny', '--ours=float32']
  wrong = '--setting=ours:mine:kind=lookup,num_drafts=2'
  out = tmp_path / 'found.json'
  with pytest.raises(SystemExit, match=r'^error: ours:mine: .*num_drafts'):
    peers.main.main([*flags, wrong, '--contestants=ours:mine', f'--out={out}'])
  with pytest.raises(SystemExit, match=r'^error: --limit is -2'):
    peers.main.main([*flags, '--limit=-2'])
  assert 'loading' not in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_what_is_measured_is_known_by_files_code_and_machine(
    peers, tmp_path, monkeypatch
):
  model = tmp_path / 'x.gguf'
  model.write_bytes(b'abc')
  args = peers.main.parse_args(
      [f'--model={model}', '--peer=none', '--contestants=ours:plain']
  )
  contestants, settings = peers.main.choose(args)

  def identity():
    return peers.identity.identity(contestants, settings, [[1]], args)

  first = identity()
  assert first == identity()
  assert first['contestants'] == {'ours:plain:auto': ''}
  os.utime(model, ns=(1, 1))
  changed = {name for name, v in identity().items() if v != first[name]}
  assert changed == {'model_files'}
  monkeypatch.setattr(peers.report, 'hardware', lambda: 'another')
  assert identity()['hardware'] == 'another'
  assert peers.identity.of_files('hf://x/y@z') == []
  args.draft = str(tmp_path / 'none.gguf')
  with pytest.raises(UserError, match='none.gguf.* does not exist'):
    identity()


def _run(machine, *flags, **env):
  script = f'{machine.checkout}/scripts/bench_vs_transformers.sh'
  return machine.run(script, *flags, **env)


def test_peers_have_environments_of_their_own(machine):
  machine.add_python('3.99.0')
  done = _run(machine, '--limit=1')
  assert done.returncode == 0, done.stderr
  calls = machine.take_calls('')
  installs = [call for call in calls if ' -m pip install' in call]
  assert any('torch==' in call for call in installs)
  assert not any('llama' in call for call in installs)
  cache = machine.home / '.cache' / 'speculative'
  peer = f'--peer-python={cache}/venv-peer/bin/python'
  assert calls[-1].endswith(f'bench_vs_transformers.py {peer} --limit=1')
  # What is there is not installed again.
  done = _run(machine, '--llama-cpp', '--limit=1')
  assert done.returncode == 0, done.stderr
  calls = machine.take_calls('')
  installs = [call for call in calls if ' -m pip install' in call]
  assert len(installs) == 1 and 'llama-cpp-python==' in installs[0]
  llama = f'--llama-python={cache}/venv-llama/bin/python'
  assert calls[-1].endswith(f'{peer} --limit=1 {llama}')


def test_only_who_takes_part_needs_an_environment(machine):
  machine.add_python('3.99.0')
  flags = ['--contestants', 'ours:plain,llama.cpp:plain', '--limit=1']
  done = _run(machine, '--llama-cpp', *flags)
  assert done.returncode == 0, done.stderr
  calls = machine.take_calls('')
  assert not any('torch==' in call for call in calls)
  assert '--peer-python' not in calls[-1]
  assert ' '.join(flags) in calls[-1]
  done = _run(machine, '--contestants=ours:plain,transformers:plain', '--limit')
  assert done.returncode == 0, done.stderr
  assert any('torch==' in call for call in machine.take_calls(' -m pip'))


def test_an_environment_that_cannot_be_made_ends_it(machine):
  machine.add_python('3.99.0', pip_says='no compiler')
  done = _run(machine, '--llama-cpp', PEER_PYTHON='/p')
  assert done.returncode == 1
  assert 'error: no Python found here can install llama.cpp' in done.stderr
