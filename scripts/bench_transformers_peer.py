"""Serves transformers' greedy `generate` over stdin and stdout.

Started by bench_vs_transformers.py, one process a dtype. The first line out is
{"ready": {...}}; then each line in, {"ids": [...], "max_new_tokens": n}, is
answered by one line out with the new token ids and two durations:

  prefill_s  from the call of generate to its first token
  decode_s   from there to its return, n - 1 forward passes

The end-of-text token neither stops nor is suppressed, so that every answer has
exactly n tokens and no logits processor runs. Between requests the process
blocks in a read; torch's OpenMP threads spin for about a millisecond after
their last work and then sleep (the default wait policy), so waiting costs the
other side nothing. OMP_WAIT_POLICY=PASSIVE would only slow this side down.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import torch
import transformers
from transformers.generation import streamers


class _FirstToken(streamers.BaseStreamer):
  """Notes when the first new token arrives."""

  def __init__(self) -> None:
    self.num_calls = 0
    self.at_s = 0.0

  def put(self, value: torch.Tensor) -> None:
    del value
    self.num_calls += 1
    # The first call hands over the prompt.
    if self.num_calls == 2:
      self.at_s = time.perf_counter()

  def end(self) -> None:
    pass


def load_model(
    path: pathlib.Path, *, dtype: str, attention: str
) -> transformers.PreTrainedModel:
  """Returns the GGUF file's model, set to decode greedily without stopping."""
  model = transformers.AutoModelForCausalLM.from_pretrained(
      path.parent,
      gguf_file=path.name,
      dtype=getattr(torch, dtype),
      attn_implementation=attention,
  ).eval()
  model.generation_config = transformers.GenerationConfig(
      do_sample=False,
      eos_token_id=None,
      # Never written; without it every call warns.
      pad_token_id=0,
  )
  return model


@torch.inference_mode()
def answer(
    model: transformers.PreTrainedModel, request: dict
) -> dict[str, float | list[int]]:
  """Runs one request.

  Args:
    model: as load_model returned it.
    request: a decoded line.

  Returns:
    What the answering line holds.
  """
  ids_1T = torch.tensor([request['ids']])
  first = _FirstToken()
  started = time.perf_counter()
  out_1T = model.generate(
      ids_1T,
      attention_mask=torch.ones_like(ids_1T),
      max_new_tokens=request['max_new_tokens'],
      streamer=first,
  )
  ended = time.perf_counter()
  return {
      'token_ids': out_1T[0, ids_1T.shape[1] :].tolist(),
      'prefill_s': first.at_s - started,
      'decode_s': ended - first.at_s,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--gguf', type=pathlib.Path, required=True)
  parser.add_argument('--dtype', choices=('float32', 'bfloat16'), required=True)
  parser.add_argument('--threads', type=int, required=True)
  parser.add_argument('--attention', choices=('sdpa', 'eager'), default='sdpa')
  args = parser.parse_args()
  # What a library prints must not end up between the answers.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  transformers.logging.set_verbosity_error()
  torch.set_num_threads(args.threads)
  model = load_model(args.gguf, dtype=args.dtype, attention=args.attention)
  versions = {
      'torch': torch.__version__,
      'transformers': transformers.__version__,
  }
  print(json.dumps({'ready': versions}), file=answers, flush=True)
  for line in sys.stdin:
    print(json.dumps(answer(model, json.loads(line))), file=answers, flush=True)


if __name__ == '__main__':
  main()
