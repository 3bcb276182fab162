"""Freezes what other implementations say about a GGUF file, for the tests.

  bash scripts/references.sh --smollm2=FILE.gguf --qwen=FILE.gguf

Nothing of this project is imported: weights come through transformers'
GGUF reader, float32 logits through its eager attention, token ids through the
`tokenizers` library. Three files a run, all under tests/data:

  <model>_logits.npz   per prompt i: ids_T<i>, logits_TC<i> (exact float32 at
                       columns_C), argmax_T<i>, logsumexp_T<i>, mean_T<i> and
                       last_row_V<i> (the whole last row, int32 multiples of
                       `last_row_step`); `metadata` is a JSON string.
  token_ids.json       texts and their ids in both vocabularies, and which
                       references agree.

GGUF files do not say how their byte-level BPE splits words; they name it
(`tokenizer.ggml.pre`). The tokenizer of record is therefore assembled here
from the file's own vocabulary and merges and from the model's *published*
normaliser and pre-tokeniser. transformers' conversion and llama.cpp are asked
too, and each sample lists who agrees.
"""

import argparse
import datetime
import hashlib
import importlib.metadata
import json
import pathlib
import sys

import gguf
import numpy as np
import reference_samples
import tokenizers
import torch
import transformers

_NUM_COLUMNS = 512
_NUM_TOKENS = 64
# Whole rows are kept as multiples of this, so that they compress well; the
# error, half of it, is an eighth of the tests' tolerance.
_ROW_STEP = 2.0**-11
# A file read with the wrong rotary layout or head says ~10 nats and more.
_MAX_PROSE_NATS = 5.0

# Published pre-tokenisers, by the name the GGUF file gives them.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
_CONTROL, _USER_DEFINED = 3, 4

# Where another implementation leaves the published definition, and why; a
# difference that is not listed stops the script.
_KNOWN_DIFFERENCES = {
    ('smollm2', 'transformers'): (
        'its conversion drops the splitting of digits',
        {'ligature_and_width', 'arabic'},
    ),
    ('qwen2', 'transformers'): (
        'its conversion drops the added tokens beyond <|im_end|>',
        {'special_qwen'},
    ),
    ('qwen2', 'llama.cpp'): (
        'it does not compose (NFC), and takes the ordinary piece </s> for a '
        'special token',
        {
            'accents_decomposed',
            'combining_stack',
            'kana_decomposed',
            'korean_decomposed',
            'not_special',
        },
    ),
}


def _sha256(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _versions() -> dict[str, str]:
  names = ('torch', 'transformers', 'tokenizers', 'gguf', 'llama-cpp-python')
  versions = {}
  for name in names:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = 'absent'
  return versions


def load_model(path: pathlib.Path) -> transformers.PreTrainedModel:
  """Loads the file in float32 and proves that embedding and head are its own.

  Args:
    path: the GGUF file.

  Returns:
    The model in evaluation mode, eager attention.

  Raises:
    AssertionError: If the embedding or the head differs from the file's
      dequantised tensors.
  """
  model = transformers.AutoModelForCausalLM.from_pretrained(
      path.parent,
      gguf_file=path.name,
      dtype=torch.float32,
      attn_implementation='eager',
  ).eval()
  tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}

  def dequantised(name: str) -> torch.Tensor:
    tensor = tensors[name]
    return torch.from_numpy(
        gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    )

  embedding = dequantised('token_embd.weight')
  assert torch.equal(model.model.embed_tokens.weight, embedding)
  if 'output.weight' in tensors:
    head = dequantised('output.weight')
    assert not model.config.tie_word_embeddings
    assert not torch.equal(head, embedding)
  else:
    head = embedding
  assert torch.equal(model.lm_head.weight, head)
  return model


def build_tokenizer(path: pathlib.Path) -> tokenizers.Tokenizer:
  """Assembles the published tokenizer around the file's vocabulary.

  Args:
    path: a GGUF file whose `tokenizer.ggml.pre` is 'smollm' or 'qwen2'.

  Returns:
    A tokenizer that adds nothing and parses special tokens.
  """
  fields = gguf.GGUFReader(path).fields
  pieces = fields['tokenizer.ggml.tokens'].contents()
  kinds = fields['tokenizer.ggml.token_type'].contents()
  merges = fields['tokenizer.ggml.merges'].contents()
  tokenizer = tokenizers.Tokenizer(
      tokenizers.models.BPE(
          vocab={piece: i for i, piece in enumerate(pieces)},
          merges=[tuple(merge.split(' ')) for merge in merges],
      )
  )
  pre = tokenizers.pre_tokenizers
  match fields['tokenizer.ggml.pre'].contents():
    case 'smollm':
      first = pre.Digits(individual_digits=True)
      then = pre.ByteLevel(add_prefix_space=False, use_regex=True)
    case 'qwen2':
      tokenizer.normalizer = tokenizers.normalizers.NFC()
      first = pre.Split(tokenizers.Regex(_QWEN2_SPLIT), behavior='isolated')
      then = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    case other:
      sys.exit(f'{path}: no published definition for pre-tokeniser {other!r}.')
  tokenizer.pre_tokenizer = pre.Sequence([first, then])
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  tokenizer.add_special_tokens(
      [
          tokenizers.AddedToken(piece, normalized=False, special=True)
          for piece, kind in zip(pieces, kinds, strict=True)
          if kind in (_CONTROL, _USER_DEFINED)
      ]
  )
  assert tokenizer.get_vocab_size() == len(pieces), 'a special token was added'
  return tokenizer


@torch.inference_mode()
def freeze_logits(path: pathlib.Path, out: pathlib.Path) -> None:
  """Writes the logits of the fixed prompts, one pass without a cache each.

  Args:
    path: the GGUF file.
    out: the .npz to write.
  """
  model, tokenizer = load_model(path), build_tokenizer(path)
  vocab_size = model.config.vocab_size
  rng = np.random.default_rng(0)
  columns_C = np.sort(rng.choice(vocab_size, _NUM_COLUMNS, replace=False))
  arrays = {'columns_C': columns_C.astype(np.int32)}
  nats = {}
  for i, (name, text) in enumerate(reference_samples.PROMPTS.items()):
    ids = tokenizer.encode(text).ids
    assert len(ids) >= _NUM_TOKENS, (name, len(ids))
    ids_T = torch.tensor(ids[:_NUM_TOKENS])
    logits_TV = model(ids_T[None]).logits[0]
    assert logits_TV.dtype == torch.float32
    nats[name] = torch.nn.functional.cross_entropy(
        logits_TV[:-1], ids_T[1:]
    ).item()
    last_row_V = torch.round(logits_TV[-1] / _ROW_STEP)
    arrays |= {
        f'ids_T{i}': ids_T.numpy().astype(np.int32),
        f'logits_TC{i}': logits_TV[:, columns_C].numpy(),
        f'argmax_T{i}': logits_TV.argmax(-1).numpy().astype(np.int32),
        f'logsumexp_T{i}': logits_TV.logsumexp(-1).numpy(),
        f'mean_T{i}': logits_TV.double().mean(-1).float().numpy(),
        f'last_row_V{i}': last_row_V.numpy().astype(np.int32),
    }
  assert nats['prose'] < _MAX_PROSE_NATS, nats
  metadata = {
      'gguf': path.name,
      'sha256': _sha256(path),
      'versions': _versions(),
      'date': datetime.date.today().isoformat(),
      'dtype': 'float32, eager attention, one pass without a cache',
      'prompts': list(reference_samples.PROMPTS),
      'last_row_step': _ROW_STEP,
      'nats_per_token': {name: round(x, 4) for name, x in nats.items()},
      'greedy': _greedy_text(model, tokenizer),
  }
  np.savez_compressed(out, metadata=json.dumps(metadata), **arrays)
  print(f'{out}: {out.stat().st_size} bytes')
  print(json.dumps(metadata, indent=2, ensure_ascii=False))


def _greedy_text(model, tokenizer: tokenizers.Tokenizer) -> str:
  """Continues a plain sentence, to be read by whoever runs this."""
  ids_1T = torch.tensor([tokenizer.encode('The capital of France is').ids])
  ids_1T = model.generate(
      ids_1T,
      attention_mask=torch.ones_like(ids_1T),
      max_new_tokens=24,
      do_sample=False,
  )
  return tokenizer.decode(ids_1T[0].tolist(), skip_special_tokens=False)


def _llama_cpp_encode(path: pathlib.Path):
  """Returns llama.cpp's encoder of the file, or None where it is absent."""
  try:
    import llama_cpp
  except ImportError:
    return None
  model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
  return lambda text: model.tokenize(text.encode(), add_bos=False, special=True)


def _transformers_encode(path: pathlib.Path):
  tokenizer = transformers.AutoTokenizer.from_pretrained(
      path.parent, gguf_file=path.name
  )
  return lambda text: tokenizer(text, add_special_tokens=False).input_ids


def freeze_token_ids(paths: dict[str, pathlib.Path], out: pathlib.Path) -> None:
  """Writes the ids of every sample text and who agrees with them.

  Args:
    paths: GGUF file by model name.
    out: the .json to write.
  """
  samples = [
      {'name': name, 'text': text}
      for name, text in reference_samples.TEXTS.items()
  ]
  for model, path in paths.items():
    encode = build_tokenizer(path).encode
    others = {
        'transformers': _transformers_encode(path),
        'llama.cpp': _llama_cpp_encode(path),
    }
    for sample in samples:
      ids = encode(sample['text']).ids
      verdicts = {'agrees': [], 'differs': []}
      for other, other_encode in others.items():
        if other_encode is None:
          continue
        same = list(other_encode(sample['text'])) == ids
        verdicts['agrees' if same else 'differs'].append(other)
        known = _KNOWN_DIFFERENCES.get((model, other), ('', ()))[1]
        assert same or sample['name'] in known, (model, other, sample['name'])
      sample[model] = {'ids': ids, **verdicts}
  report = {
      'made_by': (
          'the tokenizers library over the vocabulary and merges of the GGUF '
          'file and the published normaliser and pre-tokeniser; special tokens '
          'in the text are parsed, nothing is added'
      ),
      'known_differences': {
          f'{model}, {other}': why
          for (model, other), (why, _) in _KNOWN_DIFFERENCES.items()
      },
      'models': {
          model: {'gguf': path.name, 'sha256': _sha256(path)}
          for model, path in paths.items()
      },
      'versions': _versions(),
      'date': datetime.date.today().isoformat(),
  }
  lines = ',\n'.join(f'    {json.dumps(sample)}' for sample in samples)
  head = json.dumps(report, indent=2).removesuffix('\n}')
  out.write_text(f'{head},\n  "samples": [\n{lines}\n  ]\n}}\n')
  print(f'{out}: {len(samples)} samples')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--smollm2', type=pathlib.Path, required=True)
  parser.add_argument('--qwen', type=pathlib.Path, required=True)
  parser.add_argument(
      '--out',
      type=pathlib.Path,
      default=pathlib.Path(__file__).parents[1] / 'tests' / 'data',
  )
  parser.add_argument(
      '--what', choices=('all', 'logits', 'token_ids'), default='all'
  )
  args = parser.parse_args()
  transformers.logging.set_verbosity_error()
  args.out.mkdir(parents=True, exist_ok=True)
  paths = {'smollm2': args.smollm2.resolve(), 'qwen2': args.qwen.resolve()}
  if args.what in ('all', 'token_ids'):
    freeze_token_ids(paths, args.out / 'token_ids.json')
  if args.what in ('all', 'logits'):
    freeze_logits(paths['smollm2'], args.out / 'smollm2_135m_logits.npz')
    freeze_logits(paths['qwen2'], args.out / 'qwen25_coder_0_5b_logits.npz')


if __name__ == '__main__':
  main()
