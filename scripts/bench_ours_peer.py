"""Serves this package's greedy decoding to bench_vs_transformers.py.

See peer_protocol.py. One process a dtype holds target and draft for all its
settings, which are changes of a drafter as `bench.settings` takes them; an
empty one is plain decoding. Reading the prompt brings no token, so all count.
"""

import argparse
from collections.abc import Hashable
import json

import jax
import peer_drafters
import peer_protocol

import speculative
from speculative.decoding import engine as engine_lib


class Ours:
  """A model with its draft, and drafters to decode with.

  Attributes:
    dtype: what 'auto' stands for on this machine and jax.
  """

  def __init__(self, args: argparse.Namespace) -> None:
    """Reads the weights, once the settings are known to be right."""
    self._drafters = peer_drafters.parse(
        args.settings, draft=args.draft, draft_dtype=args.draft_dtype
    )
    drafter = peer_drafters.PLAIN
    if any(d.uses_model for d in self._drafters.values()):
      drafter = peer_drafters.of_draft(args.draft, args.draft_dtype)
    self._model = speculative.load(
        args.model, dtype=args.dtype, drafter=drafter
    )
    self.dtype = self._model.precision.dtype

  def _asked(self, request: dict) -> tuple:
    engine = self._model.engine(self._drafters[request['setting']])
    config = self._model.decode_config(
        max_new_tokens=request['max_new_tokens'], stop_ids=()
    )
    return engine, [request['ids']], config

  def warm_up(self, request: dict) -> None:
    """Compiles what a request needs and runs a round of it."""
    engine, prompts, config = self._asked(request)
    engine.warm_up(prompts, config)

  def program(self, request: dict) -> Hashable:
    """Returns what decides which programs a request needs."""
    return request['setting'], engine_lib.bucket(len(request['ids']))

  def run(self, request: dict) -> dict[str, float | int | list[int]]:
    """Answers a request.

    Args:
      request: a decoded line.

    Returns:
      What the answering line holds.
    """
    engine, prompts, config = self._asked(request)
    found = engine.generate(prompts, config)
    return {
        'token_ids': found.token_ids[0],
        'num_counted': found.num_tokens,
        'num_passes': found.num_rounds,
        'prefill_s': found.prefill_s,
        'decode_s': found.decode_s,
    }


def load(args: argparse.Namespace) -> peer_protocol.Served:
  """Reads the weights."""
  ours = Ours(args)
  ready = {'dtype': ours.dtype, 'jax': jax.__version__}
  return peer_protocol.Served(ready, ours.run, ours.warm_up, ours.program)


def main() -> None:
  """Serves."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--model', required=True)
  parser.add_argument('--draft', default='')
  parser.add_argument('--draft-dtype', default='auto')
  parser.add_argument('--settings', type=json.loads, required=True)
  parser.add_argument('--dtype', default='auto')
  args = parser.parse_args()
  peer_protocol.serve(lambda: load(args))


if __name__ == '__main__':
  main()
