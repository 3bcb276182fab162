"""Times transformers' plain `generate` with random weights of a given shape.

Started by bench_gpu.py under the peer's own interpreter, before jax takes the
device's memory. Writes one JSON object a batch to stdout, as soon as it has it:

  {"batch": B, "tokens_per_s": ..., "versions": {...}}

A text's first token comes with the prompt and is left out, as in ours: the time
of n tokens less that of one, over n - 1.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

_REPEATS = 3


def make_model(
    shape: dict[str, object], *, dtype: str, device: str
) -> transformers.PreTrainedModel:
  """Returns a Llama with weights that were drawn on the device.

  Args:
    shape: fields of transformers' LlamaConfig.
    dtype: of its weights.
    device: 'cuda' or 'cpu'.
  """
  config = transformers.LlamaConfig(**shape)
  before = torch.get_default_dtype()
  torch.set_default_dtype(getattr(torch, dtype))
  try:
    with torch.device(device):
      model = transformers.LlamaForCausalLM(config).eval()
  finally:
    torch.set_default_dtype(before)
  return model


@torch.inference_mode()
def seconds(
    model: transformers.PreTrainedModel,
    ids_BT: torch.Tensor,
    settings: transformers.GenerationConfig,
) -> float:
  """Returns the seconds of one call of generate."""
  if ids_BT.is_cuda:
    torch.cuda.synchronize()
  started = time.perf_counter()
  model.generate(
      ids_BT,
      attention_mask=torch.ones_like(ids_BT),
      generation_config=settings,
  )
  if ids_BT.is_cuda:
    torch.cuda.synchronize()
  return time.perf_counter() - started


def tokens_per_s(
    model: transformers.PreTrainedModel,
    ids_BT: torch.Tensor,
    *,
    num_tokens: int,
    temperature: float,
) -> float:
  """Returns the tokens of all rows a second after the first, a median."""
  how = {'do_sample': False}
  if temperature:
    # top_k is 50 where nothing is said.
    how = {'do_sample': True, 'temperature': temperature, 'top_k': 0}
  one, all_of_them = (
      transformers.GenerationConfig(
          max_new_tokens=num,
          min_new_tokens=None,
          eos_token_id=None,
          pad_token_id=0,
          **how,
      )
      for num in (1, num_tokens)
  )
  seconds(model, ids_BT, one)
  seconds(model, ids_BT, all_of_them)
  found = [
      seconds(model, ids_BT, all_of_them) - seconds(model, ids_BT, one)
      for _ in range(_REPEATS)
  ]
  return len(ids_BT) * (num_tokens - 1) / statistics.median(found)


def main() -> None:
  """Measures batch after batch."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--shape', type=json.loads, required=True)
  parser.add_argument('--dtype', required=True)
  parser.add_argument('--device', choices=('cuda', 'cpu'), required=True)
  parser.add_argument('--prompt-len', type=int, required=True)
  parser.add_argument('--batches', type=json.loads, required=True)
  parser.add_argument('--num-tokens', type=int, required=True)
  parser.add_argument('--temperature', type=float, required=True)
  args = parser.parse_args()
  transformers.logging.set_verbosity_error()
  if args.device == 'cuda' and not torch.cuda.is_available():
    raise SystemExit('torch sees no GPU')
  model = make_model(args.shape, dtype=args.dtype, device=args.device)
  torch.manual_seed(0)
  size = (max(args.batches), args.prompt_len)
  ids_BT = torch.randint(model.config.vocab_size, size, device=args.device)
  versions = {
      'torch': torch.__version__,
      'transformers': transformers.__version__,
  }
  for batch in args.batches:
    rate = tokens_per_s(
        model,
        ids_BT[:batch],
        num_tokens=args.num_tokens,
        temperature=args.temperature,
    )
    found = {'batch': batch, 'tokens_per_s': rate, 'versions': versions}
    print(json.dumps(found), flush=True)


if __name__ == '__main__':
  main()
