"""A loaded target with its tokenizer and drafter: prompts in, text out."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools

from speculative import sharding
from speculative.checkpoints import pretrained
from speculative.checkpoints.draft_dir import DraftCheckpoint
from speculative.checkpoints.draft_dir import TargetIdentity
from speculative.decoding import config as config_lib
from speculative.decoding import engine
from speculative.decoding.autoregressive import Autoregressive
from speculative.decoding.config import DecodeConfig
from speculative.decoding.engine import Engine
from speculative.decoding.generation import Generation
from speculative.decoding.loop import Weights
from speculative.decoding.speculative import Speculative
from speculative.drafting import build
from speculative.drafting import config as drafter_config
from speculative.drafting import loaded
from speculative.drafting.config import DrafterConfig
from speculative.drafting.text import StoreAndModel
from speculative.errors import UserError
from speculative.models import int8
from speculative.models import params as params_lib
from speculative.models import precision as precision_lib
from speculative.models import transformer
from speculative.models.config import TransformerConfig
from speculative.models.draft import DraftModel
from speculative.models.transformer import Transformer
from speculative.retrieval import sharded
from speculative.retrieval.bigram_table import DeviceTable
from speculative.retrieval.device_store import DeviceStore
from speculative.retrieval.sharded import ShardedStore
from speculative.sharding import Placement
from speculative.tokenizer import base
from speculative.tokenizer import chat
from speculative.tokenizer import text_stream


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
      draft: pretrained.Pretrained | DraftCheckpoint | None,
      *,
      dtype: str,
      layers: str,
      drafter: DrafterConfig,
      placement: Placement,
      draft_placement: Placement,
      store: DeviceStore | None = None,
      table: DeviceTable | None = None,
  ) -> None:
    """Keeps what was opened; `open_model` is the way to call this."""
    self._target, self._draft = target, draft
    self._layers, self._drafter = layers, drafter
    self._placement, self._draft_placement = placement, draft_placement
    self._store, self._table = store, table
    # By what of them a drafter uses, see `loaded.parts_of`.
    self._weights: dict[tuple[str, ...], Weights] = {}
    self._engines: dict[DrafterConfig, Engine] = {}
    self.tokenizer = target.tokenizer
    self.config = target.config
    self.precision = precision_lib.choose(dtype)
    self.max_seq_len = target.config.max_position

  @property
  def drafter(self) -> DrafterConfig:
    """The drafter `generate` uses unless told otherwise."""
    return self._drafter

  @property
  def store(self) -> DeviceStore | None:
    """The datastore that was opened, of host arrays; None without one."""
    return self._store

  @property
  def identity(self) -> TargetIdentity:
    """What drafts know the target by; reads one small tensor."""
    return self._target.identity

  def load_weights(self) -> Weights:
    """Reads the weights of target and draft and the store, once."""
    if not self._weights:
      target = self._target.load_params(
          self.precision.param_dtype, self._placement
      )
      if self._layers == 'scanned':
        target = transformer.stack_layers(target)
      store, model = self._load_store(), self._load_draft(target)
      self._weights = {
          (): Weights(target),
          ('table',): Weights(target, self._placement.put(self._table)),
          ('store',): Weights(target, store),
          ('model',): Weights(target, model),
          ('store', 'model'): Weights(target, StoreAndModel(store, model)),
      }
    return self._weights[loaded.parts_of(self._drafter)]

  def _load_store(self) -> DeviceStore | ShardedStore | None:
    if self._store is None or self._drafter.asks_host:
      return None
    if self._drafter.retrieval.placement == 'split':
      mesh = self._placement.mesh
      return sharded.place(self._store, mesh, sharding.MODEL)
    return self._placement.put(self._store)

  def _load_draft(self, target: params_lib.Params) -> params_lib.Params | None:
    if self._draft is None:
      return None
    dtype = self._draft_precision.param_dtype
    if isinstance(self._draft, DraftCheckpoint):
      params = self._draft.load_params(dtype, self._draft_placement, target)
    else:
      params = target
      if not self._drafter.shares_target:
        params = self._draft.load_params(dtype, self._draft_placement)
      num_layers = self._draft_config.num_layers
      params = {**params, 'layers': params['layers'][:num_layers]}
    if self._drafter.dtype == 'int8':
      params = int8.quantise_params(params)
    return params

  @property
  def _draft_precision(self) -> precision_lib.Precision:
    if self._drafter.shares_target:
      return self.precision
    return precision_lib.choose_draft(self._drafter.dtype)

  @property
  def _draft_config(self) -> TransformerConfig:
    config = self._draft.config
    num_layers = self._drafter.num_layers or config.num_layers
    return dataclasses.replace(config, num_layers=num_layers)

  def engine(self, drafter: str | DrafterConfig | None = None) -> Engine:
    """Returns the engine of a drafter over the loaded weights.

    Args:
      drafter: this model's own when absent; another, or a kind with default
        settings, must use no draft model and no datastore, or the same ones in
        the same format. Each gets what it needs of what was loaded.

    Returns:
      The Engine; the same one for the same drafter.

    Raises:
      UserError: If the drafter needs a draft model or a datastore that was not
        loaded.
    """
    if drafter is None:
      drafter = self._drafter
    drafter = drafter_config.named(drafter)
    if drafter not in self._engines:
      step = self._step(drafter)
      self.load_weights()
      self._engines[drafter] = loaded.make_engine(
          drafter, step, self._weights[loaded.parts_of(drafter)], self._store
      )
    return self._engines[drafter]

  def check_drafter(self, drafter: str | DrafterConfig | None = None) -> None:
    """Refuses a drafter that its draft model cannot be, without weights.

    Args:
      drafter: as `engine` takes it.

    Raises:
      UserError: Naming the field of the drafter.
    """
    if drafter is None:
      drafter = self._drafter
    self._step(drafter_config.named(drafter))

  def _step(self, drafter: DrafterConfig) -> Autoregressive | Speculative:
    num_tokens = self.tokenizer.vocab_size
    target = Transformer(
        self.config,
        self.precision,
        self._layers,
        num_tokens,
        self._placement,
    )
    if drafter.is_plain:
      return Autoregressive(target)
    if drafter.uses_store:
      loaded.check_loaded(
          'datastore', loaded.store_of(drafter), loaded.store_of(self._drafter)
      )
    if drafter.uses_store and self._store is not None:
      drafter.check_depth(self._store.depth)
    loaded.check_table(drafter, self._drafter, self._table)
    model = self._draft_model(drafter) if drafter.uses_model else None
    built = build.build(
        drafter,
        model=model,
        vocab_size=self.config.vocab_size,
        placement=self._placement,
    )
    return Speculative(target, built, rule=drafter.rule)

  def _draft_model(self, drafter: DrafterConfig) -> Transformer | DraftModel:
    """Returns the static half of the loaded draft model."""
    loaded.check_loaded(
        'draft model',
        loaded.weights_of(drafter),
        loaded.weights_of(self._drafter),
    )
    settings = dict(
        num_tokens=self.tokenizer.vocab_size, placement=self._draft_placement
    )
    if isinstance(self._draft, DraftCheckpoint):
      return DraftModel(self._draft.config, self._draft_precision, **settings)
    return Transformer(self._draft_config, self._draft_precision, **settings)

  def encode(
      self, prompt: str | Sequence[str], *, chat_template: str = 'auto'
  ) -> list[int]:
    """Returns the token ids of a prompt.

    Args:
      prompt: text of the user; or a conversation, the user and the model in
        turn, of which the user says the last.
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
    turns = [prompt] if isinstance(prompt, str) else list(prompt)
    if not turns or not turns[-1]:
      raise UserError('the prompt is empty; give some text to go on from.')
    wanted = chat_template == 'yes' or (
        chat_template == 'auto' and self.tokenizer.chat_template is not None
    )
    if not wanted:
      return base.encode_prompt(self.tokenizer, '\n\n'.join(turns))
    roles = itertools.cycle(('user', 'assistant'))
    messages = [
        {'role': role, 'content': text}
        for role, text in zip(roles, turns, strict=False)
    ]
    text = chat.render_for(self.tokenizer, messages)
    return base.encode_prompt(self.tokenizer, text)

  def decode(self, ids: Sequence[int]) -> str:
    """Returns the text of new tokens, which go on from a prompt.

    Args:
      ids: token ids; those beyond the tokenizer have no text.
    """
    stream = text_stream.TextStream(self.tokenizer)
    return stream.push(ids) + stream.flush()

  def generate(
      self,
      prompts: str | Sequence[str] | Sequence[Sequence[int]],
      *,
      chat_template: str = 'auto',
      drafter: str | DrafterConfig | None = None,
      rows: Sequence[Mapping[str, object]] | None = None,
      on_text: Callable[[int, str], None] | None = None,
      **decode: object,
  ) -> Result:
    """Answers a prompt, or a batch of them.

    Args:
      prompts: text, several texts, or several lists of token ids.
      chat_template: see `encode`; token ids are taken as they are.
      drafter: see `engine`.
      rows: settings that differ from prompt to prompt, one mapping of
        DecodeConfig's fields a prompt.
      on_text: called with (row, text) as text comes: whole characters only,
        and nothing that may turn out to begin a stop string.
      **decode: fields of `decoding.config.DecodeConfig` that all prompts share.

    Returns:
      The Result.

    Raises:
      UserError: For a prompt or a setting that cannot be used.
    """
    if drafter is not None:
      drafter = drafter_config.named(drafter)
    prompts = [prompts] if isinstance(prompts, str) else prompts
    if not _is_list(prompts):
      raise UserError(
          f'prompts are {prompts!r}; they need to be a text, or a list of '
          'texts or of lists of token ids.'
      )
    ids = [self._ids(p, chat_template) for p in prompts]
    configs = self.decode_configs(len(ids), rows=rows, **decode)
    self.check(ids, configs)
    if on_text is not None and configs[0].rounds_per_call == 0:
      configs = [dataclasses.replace(c, rounds_per_call=1) for c in configs]
    streams = [
        text_stream.TextStream(self.tokenizer, c.stop_strings) for c in configs
    ]

    def say(row: int, text: str) -> None:
      if text and on_text is not None:
        on_text(row, text)

    def on_tokens(row: int, new: list[int]) -> int | None:
      stream = streams[row]
      say(row, stream.push(new))
      return stream.num_tokens if stream.has_ended else None

    watched = on_text is not None or any(c.stop_strings for c in configs)
    generation = self.engine(drafter).generate(
        ids, configs, on_tokens=on_tokens if watched else None
    )
    for row, stream in enumerate(streams):
      if not watched:
        stream.push(generation.token_ids[row])
      say(row, stream.flush())
    return Result([stream.text for stream in streams], generation)

  def _ids(self, prompt: str | Sequence[int], chat_template: str) -> list[int]:
    if isinstance(prompt, str):
      return self.encode(prompt, chat_template=chat_template)
    if not _is_list(prompt):
      raise UserError(
          f'a prompt is {prompt!r}; it needs to be text or a list of token '
          'ids, so one prompt of ids is a list in a list.'
      )
    ids = prompt.tolist() if hasattr(prompt, 'tolist') else list(prompt)
    # An embedding would quietly take the nearest row there is.
    known = range(self.config.vocab_size)
    if wrong := [i for i in ids if not config_lib.is_int(i) or i not in known]:
      raise UserError(
          f'token id {wrong[0]!r} is outside the vocabulary of {len(known)}; '
          'give ids of this tokenizer.'
      )
    return [int(i) for i in ids]

  def decode_configs(
      self,
      num_rows: int,
      *,
      rows: Sequence[Mapping[str, object]] | None = None,
      **decode: object,
  ) -> list[DecodeConfig]:
    """Returns a DecodeConfig a row.

    Args:
      num_rows: B.
      rows: fields that differ from row to row, one mapping a row; absent where
        all rows are alike but for seed + row.
      **decode: fields that all rows share; see `decode_config`.

    Returns:
      The configs, in the order of the rows.

    Raises:
      UserError: Naming row and field.
    """
    if rows is None:
      return config_lib.rows_of(self.decode_config(**decode), num_rows)
    listed = list(rows) if _is_list(rows) else []
    if not listed or not all(isinstance(row, Mapping) for row in listed):
      raise UserError(
          f'rows are {rows!r}; they need to be a list with a mapping of '
          'settings for every prompt.'
      )
    if len(listed) != num_rows:
      raise UserError(
          f'{num_rows} prompts need as many rows of settings, got '
          f'{len(listed)}.'
      )
    configs = []
    for index, row in enumerate(listed):
      try:
        config_lib.check_names(row)
        configs.append(self.decode_config(**{**decode, **row}))
      except UserError as error:
        raise UserError(f'row {index}: {error}') from error
    return config_lib.rows_of(configs, num_rows)

  def decode_config(self, **decode: object) -> DecodeConfig:
    """Returns a DecodeConfig with this model's stop ids and longest text.

    Args:
      **decode: fields of `decoding.config.DecodeConfig`. stop_ids are the
        tokenizer's own and max_seq_len what the model was made for, unless
        given.

    Returns:
      The config.

    Raises:
      UserError: If a field is unknown or out of range.
    """
    config_lib.check_names(decode)
    decode.setdefault('stop_ids', self.tokenizer.eos_ids)
    if decode.get('max_seq_len') in (None, 0):
      decode['max_seq_len'] = self.max_seq_len
    config = DecodeConfig(**decode)
    if not 1 < config.max_seq_len <= self.max_seq_len:
      raise UserError(
          f'max_seq_len is {config.max_seq_len}, but this model was made '
          f'for texts of 2 to {self.max_seq_len} tokens; choose one of these.'
      )
    return config

  def check(
      self,
      prompts: Sequence[Sequence[int]],
      configs: Sequence[DecodeConfig],
  ) -> None:
    """Refuses what cannot be decoded, before weights are read.

    Args:
      prompts: token ids.
      configs: how to decode, one a prompt.

    Raises:
      UserError: As `decoding.engine.check`.
    """
    engine.check(prompts, configs, vocab_size=self.config.vocab_size)


def _is_list(value: object) -> bool:
  """Tells what holds prompts, ids or rows from texts, mappings and numbers."""
  return isinstance(value, Iterable) and not isinstance(
      value, str | bytes | Mapping
  )
