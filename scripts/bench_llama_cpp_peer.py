"""Serves llama.cpp's greedy decoding to bench_vs_transformers.py.

See peer_protocol.py. The weights stay in the file's own quantised format, so
this is another model than the one the others compute with, and a smaller one to
read. Each setting has a context of its own.

A setting's fields `num_pred_tokens` and `max_ngram_size` are those of
LlamaPromptLookupDecoding, the binding's own look-up; all others are arguments
of Llama, such as `flash_attn=true`. Tokens are pulled from Llama.generate one
by one; the first comes with the reading of the prompt and does not count.
"""

import argparse
import inspect
import json
import pathlib
import time

import llama_cpp
from llama_cpp import llama_speculative
import peer_protocol

_OF_LOOKUP = ('num_pred_tokens', 'max_ngram_size')
# The same for every contestant, or made of fields.
_FIXED = (
    'model_path',
    'n_ctx',
    'n_threads',
    'n_threads_batch',
    'verbose',
    'draft_model',
)
# Files' formats by llama.cpp's numbers of them.
_FORMATS = {
    0: 'F32',
    1: 'F16',
    2: 'Q4_0',
    3: 'Q4_1',
    7: 'Q8_0',
    8: 'Q5_0',
    9: 'Q5_1',
    10: 'Q2_K',
    11: 'Q3_K_S',
    12: 'Q3_K_M',
    13: 'Q3_K_L',
    14: 'Q4_K_S',
    15: 'Q4_K_M',
    16: 'Q5_K_S',
    17: 'Q5_K_M',
    18: 'Q6_K',
    32: 'BF16',
}


def read_setting(name: str, text: str) -> dict[str, object]:
  """Returns a setting's fields.

  Args:
    name: of the setting.
    text: fields with their values.

  Raises:
    ValueError: If there is no such field, or it is not the setting's.
  """
  fields = peer_protocol.fields(text)
  known = {*_OF_LOOKUP, *inspect.signature(llama_cpp.Llama).parameters}
  peer_protocol.refuse(name, set(fields) - known, 'Llama does not know')
  peer_protocol.refuse(
      name, set(fields) & set(_FIXED), 'the comparison sets itself'
  )
  return fields


def open_llama(
    fields: dict[str, object], args: argparse.Namespace
) -> llama_cpp.Llama:
  """Returns the file's model with what a setting asks for.

  Args:
    fields: of the setting.
    args: flags.
  """
  lookup = {k: fields[k] for k in _OF_LOOKUP if k in fields}
  fields = {k: v for k, v in fields.items() if k not in _OF_LOOKUP}
  if lookup:
    fields['draft_model'] = llama_speculative.LlamaPromptLookupDecoding(
        **lookup
    )
  return llama_cpp.Llama(
      str(args.gguf),
      n_ctx=args.context,
      n_threads=args.threads,
      n_threads_batch=args.threads,
      verbose=False,
      **fields,
  )


def run(
    llamas: dict[str, llama_cpp.Llama], request: dict
) -> dict[str, float | int | list[int]]:
  """Answers a request.

  Args:
    llamas: by setting.
    request: a decoded line.

  Returns:
    What the answering line holds.
  """
  llama = llamas[request['setting']]
  # Else it would not read again what this prompt has in common with the last.
  llama.reset()
  started = time.perf_counter()
  tokens = llama.generate(request['ids'], temp=0.0)
  token_ids = [next(tokens)]
  first_s = time.perf_counter()
  for _ in range(request['max_new_tokens'] - 1):
    token_ids.append(next(tokens))
  ended = time.perf_counter()
  tokens.close()
  return {
      'token_ids': token_ids,
      'num_counted': len(token_ids) - 1,
      'prefill_s': first_s - started,
      'decode_s': ended - first_s,
  }


def load(args: argparse.Namespace) -> peer_protocol.Served:
  """Opens the file, once a setting."""
  # All are read before the file is.
  settings = {
      name: read_setting(name, text) for name, text in args.settings.items()
  }
  llamas = {name: open_llama(of, args) for name, of in settings.items()}
  first = next(iter(llamas.values()))
  number = first.metadata.get('general.file_type', '-1')
  return peer_protocol.Served(
      {
          'dtype': _FORMATS.get(int(number), f'type {number}'),
          'llama-cpp-python': llama_cpp.__version__,
      },
      lambda request: run(llamas, request),
  )


def main() -> None:
  """Serves."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--gguf', type=pathlib.Path, required=True)
  parser.add_argument('--settings', type=json.loads, required=True)
  parser.add_argument('--context', type=int, required=True)
  parser.add_argument('--threads', type=int, required=True)
  args = parser.parse_args()
  peer_protocol.serve(lambda: load(args))


if __name__ == '__main__':
  main()
