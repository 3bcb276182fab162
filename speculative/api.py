"""The Python interface: load a model, generate text.

import speculative

model = speculative.load('path/or/reference', drafter='lookup')
result = model.generate('Once upon a time', max_new_tokens=64)
print(result.texts[0], result.generation.tokens_per_round)
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import os

from speculative.checkpoints import pretrained
from speculative.decoding import engine
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.engine import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.engine import Generation
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import lm
from speculative.drafting import lookup
from speculative.drafting.config import DrafterConfig
from speculative.errors import UserError
from speculative.models import params as params_lib
from speculative.models import precision as precision_lib
from speculative.models import transformer
from speculative.tokenizer import base
from speculative.tokenizer import chat
from speculative.tokenizer import detokenizer

LAYOUTS = ('unrolled', 'scanned')


@dataclasses.dataclass(frozen=True)
class Result:
  """Answers to a batch of prompts.

  Attributes:
    texts: a prompt each, without the tokens that end a reply.
    generation: token ids, counts and times.
  """

  texts: list[str]
  generation: Generation


class LanguageModel:
  """A target with its tokenizer and, if it has one, its drafter.

  Attributes:
    tokenizer: of target and drafter.
    config: the target's.
    precision: the target's number formats.
    max_seq_len: longest text the target was made for, in tokens.
  """

  def __init__(
      self,
      target: pretrained.Pretrained,
      draft: pretrained.Pretrained | None,
      *,
      dtype: str,
      layers: str,
      drafter: DrafterConfig,
  ) -> None:
    """Keeps what was opened; `open_model` is the way to call this."""
    self._target, self._draft = target, draft
    self._layers, self._drafter = layers, drafter
    self._weights: Weights | None = None
    self._engines: dict[DrafterConfig, Engine] = {}
    self.tokenizer = target.tokenizer
    self.config = target.config
    self.precision = precision_lib.choose(dtype)
    self.max_seq_len = target.config.max_position

  @property
  def drafter(self) -> DrafterConfig:
    """The drafter `generate` uses unless told otherwise."""
    return self._drafter

  def load_weights(self) -> Weights:
    """Reads the weights of target and draft, once."""
    if self._weights is None:
      self._weights = Weights(
          target=self._load(self._target, self.precision, self._layers),
          drafter=self._draft
          and self._load(
              self._draft,
              precision_lib.choose(self._drafter.dtype),
              'unrolled',
          ),
      )
    return self._weights

  def _load(
      self,
      source: pretrained.Pretrained,
      precision: precision_lib.Precision,
      layers: str,
  ) -> params_lib.Params:
    params = source.load_params(precision.param_dtype)
    return transformer.stack_layers(params) if layers == 'scanned' else params

  def engine(self, drafter: str | DrafterConfig | None = None) -> Engine:
    """Returns the engine of a drafter over the loaded weights.

    Args:
      drafter: this model's own when absent; another, or a kind with default
        settings, must be 'none' or 'lookup', or differ from this model's own
        in no more than numbers.

    Returns:
      The Engine; the same one for the same drafter.

    Raises:
      UserError: If the drafter needs a draft model that was not loaded.
    """
    if isinstance(drafter, str):
      drafter = DrafterConfig(kind=drafter)
    drafter = drafter or self._drafter
    if drafter not in self._engines:
      self._engines[drafter] = Engine(self._step(drafter), self.load_weights())
    return self._engines[drafter]

  def _step(self, drafter: DrafterConfig) -> Autoregressive | Speculative:
    num_tokens = self.tokenizer.vocab_size
    target = transformer.Transformer(
        self.config, self.precision, self._layers, num_tokens
    )
    if drafter.is_plain:
      return Autoregressive(target)
    if drafter.kind == 'lookup':
      return Speculative(
          target,
          lookup.Lookup(
              num_draft_tokens=drafter.num_draft_tokens,
              max_ngram=drafter.max_ngram,
              min_ngram=drafter.min_ngram,
          ),
      )
    loaded = (self._drafter.model, self._drafter.dtype)
    if self._draft is None or (drafter.model, drafter.dtype) != loaded:
      raise UserError(
          f'the draft model {drafter.model!r} is not loaded in '
          f'{drafter.dtype}; name it when the model is loaded.'
      )
    draft = transformer.Transformer(
        self._draft.config,
        precision_lib.choose(drafter.dtype),
        num_tokens=num_tokens,
    )
    return Speculative(
        target,
        lm.Lm(
            draft,
            num_draft_tokens=drafter.num_draft_tokens,
            vocab_size=self.config.vocab_size,
        ),
    )

  def encode(self, prompt: str, *, chat_template: str = 'auto') -> list[int]:
    """Returns the token ids of a prompt.

    Args:
      prompt: text of the user.
      chat_template: 'yes' puts the prompt into the checkpoint's template as
        the user's turn, 'no' leaves it as it is, 'auto' uses the template if
        there is one.

    Returns:
      Token ids, with a BOS where the checkpoint wants one.

    Raises:
      UserError: If the prompt is empty, or there is no template.
    """
    if chat_template not in ('auto', 'yes', 'no'):
      raise UserError(
          f"chat_template is {chat_template!r}; it needs to be 'auto', 'yes' "
          "or 'no'."
      )
    if not prompt:
      raise UserError('the prompt is empty; give some text to go on from.')
    wanted = chat_template == 'yes' or (
        chat_template == 'auto' and self.tokenizer.chat_template is not None
    )
    if not wanted:
      return base.encode_prompt(self.tokenizer, prompt)
    messages = [{'role': 'user', 'content': prompt}]
    text = chat.render_for(self.tokenizer, messages)
    return base.encode_prompt(self.tokenizer, text)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of new tokens, which go on from a prompt.

    Args:
      ids: token ids; those beyond the tokenizer have no text.
    """
    stream = detokenizer.StreamingDetokenizer(self.tokenizer, at='inside')
    return stream.push(self.known(ids)) + stream.flush()

  def known(self, ids: Sequence[int]) -> list[int]:
    """Leaves out ids of a padded head, which stand for nothing."""
    return [i for i in ids if i < self.tokenizer.vocab_size]

  def generate(
      self,
      prompts: str | Sequence[str] | Sequence[Sequence[int]],
      *,
      chat_template: str = 'auto',
      drafter: str | DrafterConfig | None = None,
      on_text: Callable[[int, str], None] | None = None,
      **decode: object,
  ) -> Result:
    """Answers a prompt, or a batch of them.

    Args:
      prompts: text, several texts, or several lists of token ids.
      chat_template: see `encode`; token ids are taken as they are.
      drafter: see `engine`.
      on_text: called with (row, text) as text comes; whole characters only.
      **decode: fields of `decoding.engine.DecodeConfig`; stop_ids are the
        tokenizer's own unless given.

    Returns:
      The Result.

    Raises:
      UserError: For a prompt or a setting that cannot be used.
    """
    prompts = [prompts] if isinstance(prompts, str) else list(prompts)
    ids = [self._ids(p, chat_template) for p in prompts]
    config = self.decode_config(**decode)
    if on_text is not None and config.rounds_per_call == 0:
      config = dataclasses.replace(config, rounds_per_call=1)
    streams = [
        detokenizer.StreamingDetokenizer(self.tokenizer, at='inside')
        for _ in prompts
    ]

    def on_tokens(row: int, new: list[int]) -> None:
      if text := streams[row].push(self.known(new)):
        on_text(row, text)

    generation = self.engine(drafter).generate(
        ids, config, on_tokens=on_tokens if on_text else None
    )
    if on_text is not None:
      for row, stream in enumerate(streams):
        if text := stream.flush():
          on_text(row, text)
    return Result(
        texts=[self.decode(new) for new in generation.token_ids],
        generation=generation,
    )

  def _ids(self, prompt: str | Sequence[int], chat_template: str) -> list[int]:
    if isinstance(prompt, str):
      return self.encode(prompt, chat_template=chat_template)
    if not isinstance(prompt, Iterable):
      raise UserError(
          f'a prompt is {prompt!r}; it needs to be text or a list of token '
          'ids, so one prompt of ids is a list in a list.'
      )
    # An embedding would quietly take the nearest row there is.
    vocab_size = self.config.vocab_size
    if wrong := [i for i in prompt if not 0 <= i < vocab_size]:
      raise UserError(
          f'token id {wrong[0]} is outside the vocabulary of {vocab_size}; '
          'give ids of this tokenizer.'
      )
    return [int(i) for i in prompt]

  def decode_config(self, **decode: object) -> DecodeConfig:
    """Returns a DecodeConfig with this model's stop ids and longest text."""
    decode.setdefault('stop_ids', self.tokenizer.eos_ids)
    if not decode.get('max_seq_len'):
      decode['max_seq_len'] = self.max_seq_len
    if not 1 < decode['max_seq_len'] <= self.max_seq_len:
      raise UserError(
          f'max_seq_len is {decode["max_seq_len"]}, but this model was made '
          f'for texts of 2 to {self.max_seq_len} tokens; choose one of these.'
      )
    return DecodeConfig(**decode)

  def check(
      self, prompts: Sequence[Sequence[int]], config: DecodeConfig
  ) -> None:
    """Refuses prompts that cannot be decoded, before weights are read.

    Args:
      prompts: token ids.
      config: how to decode.

    Raises:
      UserError: As `Engine.start` would.
    """
    engine.check(prompts, config)


def open_model(
    target: str,
    *,
    dtype: str = 'auto',
    layers: str = 'unrolled',
    drafter: str | DrafterConfig = 'none',
    cache_dir: str | os.PathLike[str] | None = None,
) -> LanguageModel:
  """Finds a model and its drafter; the weights are read when first needed.

  Args:
    target: reference of the target.
    dtype: 'auto', 'float32' or 'bfloat16'.
    layers: 'unrolled' runs fastest, 'scanned' compiles fastest.
    drafter: a kind with default settings, or a DrafterConfig.
    cache_dir: where fetched checkpoints are kept.

  Returns:
    The LanguageModel.

  Raises:
    UserError: If a reference cannot be resolved, a setting is wrong, or the
      draft model has another tokenizer.
  """
  if isinstance(drafter, str):
    drafter = DrafterConfig(kind=drafter)
  if layers not in LAYOUTS:
    raise UserError(
        f'layers is {layers!r}; it needs to be one of {", ".join(LAYOUTS)}.'
    )
  precision_lib.choose(dtype)
  precision_lib.choose(drafter.dtype)
  opened = pretrained.open_pretrained(target, cache_dir=cache_dir)
  draft = None
  if drafter.kind == 'lm':
    draft = pretrained.open_pretrained(drafter.model, cache_dir=cache_dir)
    if draft.tokenizer.fingerprint != opened.tokenizer.fingerprint:
      raise UserError(
          f'the draft {drafter.model!r} has another tokenizer '
          f'({draft.tokenizer.vocab_size} tokens) than the target {target!r} '
          f'({opened.tokenizer.vocab_size} tokens); both need the same one, '
          'choose a draft of the same family.'
      )
  return LanguageModel(
      opened, draft, dtype=dtype, layers=layers, drafter=drafter
  )


def load(
    target: str,
    *,
    dtype: str = 'auto',
    layers: str = 'unrolled',
    drafter: str | DrafterConfig = 'none',
    cache_dir: str | os.PathLike[str] | None = None,
) -> LanguageModel:
  """Finds a model and its drafter and reads their weights.

  Args:
    target: see `open_model`.
    dtype: see `open_model`.
    layers: see `open_model`.
    drafter: see `open_model`.
    cache_dir: see `open_model`.

  Returns:
    The LanguageModel.

  Raises:
    UserError: As `open_model`, and if weights are missing or do not fit.
  """
  model = open_model(
      target, dtype=dtype, layers=layers, drafter=drafter, cache_dir=cache_dir
  )
  model.load_weights()
  return model
