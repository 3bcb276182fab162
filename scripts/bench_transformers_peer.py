"""Serves transformers' greedy `generate` to bench_vs_transformers.py.

One process a dtype, see peer_protocol.py. A setting's fields are those of
GenerationConfig: `prompt_lookup_num_tokens` and `max_matching_ngram_size` for
prompt look-up; for assisted generation `assistant_model=draft`, and with it
`num_assistant_tokens`, `num_assistant_tokens_schedule` and
`assistant_confidence_threshold` of the assistant, which are the library's
defaults where they are not given (20, constant, 0.4: the assistant stops where
it is less sure than that).

prefill_s ends with the first token that arrives. Plain decoding has one by then
and needs n - 1 more passes; look-up and assistant have drafted before they read
the prompt, so the first to arrive may be several, none of which counts. Look-up
may bring more tokens than asked for in its last pass, which all count.

Between requests the process blocks in a read; torch's OpenMP threads spin for
about a millisecond after their last work and then sleep (the default wait
policy), so waiting costs the other side nothing. OMP_WAIT_POLICY=PASSIVE would
only slow this side down.
"""

import argparse
import json
import pathlib
import time

import peer_protocol
import torch
import transformers
from transformers.generation import streamers

# What generate finds in the configuration of the assistant, not of the target.
_OF_ASSISTANT = (
    'num_assistant_tokens',
    'num_assistant_tokens_schedule',
    'assistant_confidence_threshold',
)
_LOOKUP = 'prompt_lookup_num_tokens'
# The same for every contestant.
_FIXED = ('do_sample', 'eos_token_id', 'pad_token_id', 'max_new_tokens')


class _Arrivals(streamers.BaseStreamer):
  """Notes when new tokens arrive, and how many."""

  def __init__(self) -> None:
    self.times_s: list[float] = []
    self.counts: list[int] = []

  def put(self, value: torch.Tensor) -> None:
    self.times_s.append(time.perf_counter())
    self.counts.append(value.numel())

  def end(self) -> None:
    pass


def load_model(
    path: pathlib.Path, *, dtype: str, attention: str
) -> transformers.PreTrainedModel:
  """Returns the GGUF file's model."""
  return transformers.AutoModelForCausalLM.from_pretrained(
      path.parent,
      gguf_file=path.name,
      dtype=getattr(torch, dtype),
      attn_implementation=attention,
  ).eval()


def generation_config(
    fields: dict[str, object], vocab_size: int
) -> transformers.GenerationConfig:
  """Returns a config that decodes greedily and does not stop.

  Args:
    fields: of a GenerationConfig, beside these.
    vocab_size: V.
  """
  return transformers.GenerationConfig(
      do_sample=False,
      # Look-up compares its draft with this and cannot do so with None; no
      # token is the one after the last.
      eos_token_id=vocab_size if _LOOKUP in fields else None,
      # Never written; without it every call warns.
      pad_token_id=0,
      **fields,
  )


def read_setting(
    name: str, text: str, *, has_assistant: bool
) -> dict[str, object]:
  """Returns a setting's fields.

  Args:
    name: of the setting.
    text: fields with their values.
    has_assistant: whether there is a draft.

  Raises:
    ValueError: If there is no such field, or nothing for it to act on.
  """
  fields = peer_protocol.fields(text)
  known = set(vars(transformers.GenerationConfig())) | {'assistant_model'}
  peer_protocol.refuse(
      name, set(fields) - known, 'GenerationConfig does not know'
  )
  peer_protocol.refuse(
      name, set(fields) & set(_FIXED), 'the comparison sets itself'
  )
  if fields.get('assistant_model', 'draft') != 'draft':
    raise ValueError("assistant_model needs to be 'draft', the model --draft.")
  if 'assistant_model' not in fields:
    peer_protocol.refuse(
        name,
        set(fields) & set(_OF_ASSISTANT),
        'decoding without an assistant does not know',
    )
  elif not has_assistant:
    raise ValueError(f'the setting {name!r} needs a draft model; set --draft.')
  return fields


class Peer:
  """A model with its assistant, and settings to decode by."""

  def __init__(
      self,
      model: transformers.PreTrainedModel,
      assistant: transformers.PreTrainedModel | None,
      settings: dict[str, dict[str, object]],
  ) -> None:
    self._model = model
    self._assistant = assistant
    self._settings = settings

  def _configure(self, fields: dict[str, object]) -> dict[str, object]:
    """Makes all configs anew, which calls change, and returns arguments."""
    # Those of the checkpoints may draw at random. Given as an argument, a
    # config would be completed from the model's own.
    vocab_size = self._model.config.vocab_size
    of_assistant = {k: v for k, v in fields.items() if k in _OF_ASSISTANT}
    own = {
        k: v
        for k, v in fields.items()
        if k not in _OF_ASSISTANT and k != 'assistant_model'
    }
    self._model.generation_config = generation_config(own, vocab_size)
    if 'assistant_model' not in fields:
      return {}
    self._assistant.generation_config = generation_config(
        of_assistant, vocab_size
    )
    return {'assistant_model': self._assistant}

  @torch.inference_mode()
  def run(self, request: dict) -> dict[str, float | list[int]]:
    """Answers a request.

    Args:
      request: a decoded line.

    Returns:
      What the answering line holds.
    """
    arguments = self._configure(self._settings[request['setting']])
    ids_1T = torch.tensor([request['ids']])
    arrivals = _Arrivals()
    started = time.perf_counter()
    out_1T = self._model.generate(
        ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        max_new_tokens=request['max_new_tokens'],
        streamer=arrivals,
        **arguments,
    )
    ended = time.perf_counter()
    # The first to arrive is the prompt.
    first_s = arrivals.times_s[1]
    return {
        'token_ids': out_1T[0, ids_1T.shape[1] :].tolist(),
        'num_counted': sum(arrivals.counts[2:]),
        'num_passes': len(arrivals.counts[2:]),
        'prefill_s': first_s - started,
        'decode_s': ended - first_s,
    }


def load(args: argparse.Namespace) -> peer_protocol.Served:
  """Reads the weights, once the settings are known to be right."""
  settings = {
      name: read_setting(name, text, has_assistant=bool(args.draft))
      for name, text in args.settings.items()
  }
  transformers.logging.set_verbosity_error()
  torch.set_num_threads(args.threads)
  options = {'dtype': args.dtype, 'attention': args.attention}
  assistant = None
  if args.draft:
    assistant = load_model(args.draft, **options)
  peer = Peer(load_model(args.gguf, **options), assistant, settings)
  return peer_protocol.Served(
      {
          'dtype': args.dtype,
          'torch': torch.__version__,
          'transformers': transformers.__version__,
      },
      peer.run,
  )


def main() -> None:
  """Serves."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--gguf', type=pathlib.Path, required=True)
  parser.add_argument('--draft', type=pathlib.Path)
  parser.add_argument('--settings', type=json.loads, required=True)
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), required=True)
  parser.add_argument('--threads', type=int, required=True)
  parser.add_argument('--attention', choices=('sdpa', 'eager'), default='sdpa')
  args = parser.parse_args()
  peer_protocol.serve(lambda: load(args))


if __name__ == '__main__':
  main()
