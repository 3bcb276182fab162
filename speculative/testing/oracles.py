"""Slow and obvious versions in float64 numpy, to hold the fast ones against.

They share no code with what they check: loops where the package has einsums,
sorting where it bisects, enumeration where it draws.
"""

from collections.abc import Callable
from collections.abc import Sequence
import itertools
import math

import numpy as np

from speculative.models.config import RopeConfig
from speculative.models.config import TransformerConfig
from speculative.models.draft import DraftConfig

# A law of the next token given the tokens before it.
Law = Callable[[tuple[int, ...]], np.ndarray]


# ---- models ----


def rope_frequency(rope: RopeConfig, head_dim: int, i: int) -> float:
  """Returns the angular frequency of the i-th pair of a head's components."""
  plain = rope.theta ** (-2 * i / head_dim)
  if rope.scaling == 'none':
    return plain
  slow = plain / rope.factor
  if rope.scaling == 'linear':
    return slow
  wavelength = 2 * math.pi / plain
  if rope.scaling == 'llama3':
    if wavelength < rope.original_max_position / rope.high_freq_factor:
      return plain
    if wavelength > rope.original_max_position / rope.low_freq_factor:
      return slow
    share = rope.original_max_position / wavelength - rope.low_freq_factor
    share /= rope.high_freq_factor - rope.low_freq_factor
    return (1 - share) * slow + share * plain
  # YaRN: the pair that turns `rotations` times over the original context.
  pair_of = {
      rotations: head_dim
      * math.log(rope.original_max_position / (rotations * 2 * math.pi))
      / (2 * math.log(rope.theta))
      for rotations in (rope.beta_fast, rope.beta_slow)
  }
  low = max(math.floor(pair_of[rope.beta_fast]), 0)
  high = min(math.ceil(pair_of[rope.beta_slow]), head_dim - 1)
  if i <= low:
    return plain
  if i >= high:
    return slow
  share = (i - low) / (high - low)
  return share * slow + (1 - share) * plain


def _rotate(rope: RopeConfig, head_H: np.ndarray, position: int) -> np.ndarray:
  """Rotates one head; components i and i + H/2 are one complex number."""
  half = len(head_H) // 2
  amplitude = 1.0
  if rope.scaling == 'yarn':
    amplitude = rope.attention_factor or 0.1 * math.log(rope.factor) + 1
  out_H = np.zeros_like(head_H)
  for i in range(half):
    angle = position * rope_frequency(rope, len(head_H), i)
    turned = complex(head_H[i], head_H[i + half])
    turned *= amplitude * complex(math.cos(angle), math.sin(angle))
    out_H[i], out_H[i + half] = turned.real, turned.imag
  return out_H


def _act(name: str, x: np.ndarray) -> np.ndarray:
  if name == 'relu':
    return np.where(x > 0, x, 0)
  if name == 'silu':
    return x / (1 + np.exp(-x))
  if name == 'gelu':
    return x * np.vectorize(lambda v: (1 + math.erf(v / math.sqrt(2))) / 2)(x)
  cubic = x + 0.044715 * x**3
  return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * cubic))


def _rms(x: np.ndarray, scale: np.ndarray, eps: float) -> np.ndarray:
  return x / math.sqrt((x**2).mean() + eps) * scale


def _norm(config: TransformerConfig, params: dict, name: str, x_D: np.ndarray):
  if config.norm == 'rms':
    return _rms(x_D, params[name], config.norm_eps)
  normed_D = (x_D - x_D.mean()) / math.sqrt(x_D.var() + config.norm_eps)
  return normed_D * params[name] + params[f'{name}_bias']


def _linear(params: dict, name: str, x_D: np.ndarray) -> np.ndarray:
  y_F = params[f'{name}_proj'] @ x_D
  return y_F + params[f'{name}_bias'] if f'{name}_bias' in params else y_F


def grouped_attention(
    q_NH: np.ndarray, k_SKH: np.ndarray, v_SKH: np.ndarray
) -> np.ndarray:
  """Lets one position's N query heads attend to the S positions given.

  Query heads n with the same n // (N / K) share a key/value head.
  """
  N, H = q_NH.shape
  out_NH = np.zeros((N, H))
  for n in range(N):
    k_SH = k_SKH[:, n // (N // k_SKH.shape[1])]
    v_SH = v_SKH[:, n // (N // k_SKH.shape[1])]
    scores_S = np.array([q_NH[n] @ k_H for k_H in k_SH]) / math.sqrt(H)
    weights_S = np.exp(scores_S - scores_S.max())
    out_NH[n] = weights_S @ v_SH / weights_S.sum()
  return out_NH


def _attention(config: TransformerConfig, params: dict, x_TD: np.ndarray):
  T, H = len(x_TD), config.head_dim
  heads = {}
  for name in ('q', 'k', 'v'):
    flat = np.stack([_linear(params, name, x_D) for x_D in x_TD])
    heads[name] = flat.reshape(T, -1, H)
    if name == 'v':
      continue
    for t, n in np.ndindex(T, heads[name].shape[1]):
      if config.qk_norm == 'yes':
        heads[name][t, n] = _rms(
            heads[name][t, n], params[f'{name}_norm'], config.norm_eps
        )
      heads[name][t, n] = _rotate(config.rope, heads[name][t, n], t)
  return np.stack(
      [
          _linear(
              params,
              'o',
              grouped_attention(
                  heads['q'][t], heads['k'][: t + 1], heads['v'][: t + 1]
              ).ravel(),
          )
          for t in range(T)
      ]
  )


def _mlp(config: TransformerConfig, params: dict, x_D: np.ndarray):
  up_F = _linear(params, 'up', x_D)
  if config.mlp == 'plain':
    hidden_F = _act(config.activation, up_F)
  else:
    hidden_F = _act(config.activation, _linear(params, 'gate', x_D)) * up_F
  return _linear(params, 'down', hidden_F)


def transformer(
    config: TransformerConfig, params: dict, tokens_T: Sequence[int]
) -> tuple[np.ndarray, list[np.ndarray]]:
  """Runs a text through a decoder-only transformer, position by position.

  Args:
    config: the model.
    params: the tree `models.params.declare` describes, as float64 arrays.
    tokens_T: the text.

  Returns:
    Logits [T, V], and the residual stream [T, D] after every layer.
  """
  x_TD = params['embed'][np.asarray(tokens_T)]
  final_TD, streams = _layers(config, params, x_TD)
  head_VD = params['embed' if config.head == 'tied' else 'head']
  return final_TD @ head_VD.T, streams


def _layers(
    config: TransformerConfig, params: dict, x_TD: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns the normed output [T, D], and the stream after every layer."""
  streams = []
  for layer in params['layers']:
    normed_TD = [_norm(config, layer, 'attn_norm', x_D) for x_D in x_TD]
    x_TD = x_TD + _attention(config, layer, np.stack(normed_TD))
    x_TD = x_TD + np.stack(
        [
            _mlp(config, layer, _norm(config, layer, 'mlp_norm', x_D))
            for x_D in x_TD
        ]
    )
    streams.append(x_TD)
  final_TD = [_norm(config, params, 'final_norm', x_D) for x_D in x_TD]
  return np.stack(final_TD), streams


def draft(
    config: DraftConfig,
    params: dict,
    tokens_T: Sequence[int],
    hidden_TD: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
  """Runs a text through a draft that leans on its target.

  Args:
    config: the draft.
    params: as `models.draft.attach` returns them, as float64 arrays.
    tokens_T: the text.
    hidden_TD: for inputs 'hidden', of the token before each.

  Returns:
    Logits [T, W] of the head's own tokens, and its hidden states [T, D].
  """
  x_TE = params['embed'][np.asarray(tokens_T)]
  if config.inputs == 'hidden':
    x_TE = np.concatenate([x_TE, hidden_TD], axis=1)
  x_TD, _ = _layers(config.layers, params, x_TE @ params['in_proj'].T)
  if 'out_proj' in params:
    x_TD = x_TD @ params['out_proj'].T
  return x_TD @ params['head'].T, x_TD


# ---- decoding ----


def adjust(
    logits_V: np.ndarray,
    text: Sequence[int],
    prompt_len: int,
    *,
    stop_ids: Sequence[int] = (),
    logit_bias: Sequence[tuple[int, float]] = (),
    min_new_tokens: int = 0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> np.ndarray:
  """Returns one row of logits after what its text does to them.

  Args:
    logits_V: of the token after the text.
    text: all of it, prompt and output.
    prompt_len: tokens of it that are the prompt.
    stop_ids: ruled out until the output has min_new_tokens.
    logit_bias: pairs of a token and what is added to its logit.
    min_new_tokens: see stop_ids.
    repetition_penalty: for tokens of the text.
    presence_penalty: for tokens of the output, once.
    frequency_penalty: for every time they are in it.
  """
  logits = [float(logit) for logit in logits_V]
  for token, bias in logit_bias:
    logits[token] += bias
  output = list(text)[prompt_len:]
  if len(output) < min_new_tokens:
    for token in stop_ids:
      logits[token] = -math.inf
  for token in set(text):
    if logits[token] > 0:
      logits[token] /= repetition_penalty
    else:
      logits[token] *= repetition_penalty
  for token in set(output):
    logits[token] -= frequency_penalty * output.count(token)
    logits[token] -= presence_penalty
  return np.array(logits)


def warp(
    logits_V: np.ndarray,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float = 0.0,
) -> np.ndarray:
  """Returns the law of one row of logits, cut by sorting.

  Temperature, then min-p, then top-k, then top-p of what is left; tokens that
  tie with the last one kept are kept. Temperature 0 is one-hot at the first
  maximum.
  """
  logits_V = np.asarray(logits_V, np.float64)
  if temperature == 0:
    return np.eye(len(logits_V))[np.argmax(logits_V)]
  scaled_V = logits_V / temperature
  odds_V = np.exp(scaled_V - scaled_V.max())
  scaled_V = np.where(odds_V >= min_p, scaled_V, -np.inf)
  if 0 < top_k < len(scaled_V):
    last = sorted(scaled_V, reverse=True)[top_k - 1]
    scaled_V = np.where(scaled_V >= last, scaled_V, -np.inf)
  law_V = np.exp(scaled_V - scaled_V.max())
  law_V /= law_V.sum()
  if top_p < 1:
    total, last = 0.0, 0.0
    for prob in sorted(law_V, reverse=True):
      if total >= top_p:
        break
      total, last = total + prob, prob
    law_V = np.where(law_V >= last, law_V, 0)
    law_V /= law_V.sum()
  return law_V


def inverse(u_L: Sequence[float], law_V: np.ndarray, num_blocks: int) -> int:
  """Returns the token that four random numbers stand for.

  Args:
    u_L: in [0, 1), one a level of the tree.
    law_V: probabilities, up to a factor.
    num_blocks: of the vocabulary.

  Returns:
    The token.
  """

  def split(items: list, width: int) -> list[list]:
    return [items[i : i + width] for i in range(0, len(items), width)]

  def mass(node: list | int) -> float:
    return law_V[node] if isinstance(node, int) else sum(map(mass, node))

  width = -(-len(law_V) // num_blocks)
  blocks = [
      split(block, math.isqrt(width))
      for block in split(list(range(len(law_V))), width)
  ]
  node = split(blocks, math.isqrt(num_blocks))
  for u in u_L:
    ends = np.cumsum(np.array([mass(child) for child in node], np.float64))
    node = node[int(np.argmax(ends > u * ends[-1]))]
  return node


def acceptance_probability(p: float, q: float) -> float:
  """Returns min(1, p / q), the chance to keep a token drawn with chance q."""
  return 1.0 if p >= q else p / q


def residual(p_V: np.ndarray, q_V: np.ndarray) -> np.ndarray:
  """Returns the law after a rejection; p where p - q leaves nothing."""
  rest_V = np.array([max(p - q, 0.0) for p, q in zip(p_V, q_V, strict=True)])
  return rest_V / rest_V.sum() if rest_V.sum() > 0 else np.array(p_V)


def text_law(p: Law, vocab_size: int, length: int) -> dict:
  """Returns the probability of every text of a length under plain decoding."""
  law = {}
  for text in itertools.product(range(vocab_size), repeat=length):
    law[text] = math.prod(p(text[:i])[text[i]] for i in range(length))
  return law


def speculative_text_law(
    p: Law, q: Law, vocab_size: int, num_draft_tokens: int
) -> dict:
  """Returns the law of the first J + 1 tokens when a round drafts J of them.

  Every drafted chain and every place of its first rejection is gone through.
  A round that emits fewer than J + 1 tokens is followed by plain decoding.

  Args:
    p: the target.
    q: the draft.
    vocab_size: V.
    num_draft_tokens: J.

  Returns:
    Probability of every text of J + 1 tokens.
  """
  J = num_draft_tokens
  law = dict.fromkeys(itertools.product(range(vocab_size), repeat=J + 1), 0.0)

  def finish(text: tuple[int, ...], weight: float) -> None:
    if weight == 0:
      return
    if len(text) == J + 1:
      law[text] += weight
      return
    for token, prob in enumerate(p(text)):
      finish((*text, token), weight * prob)

  for drafted in itertools.product(range(vocab_size), repeat=J):
    reached = math.prod(q(drafted[:j])[drafted[j]] for j in range(J))
    for j, token in enumerate(drafted):
      p_V, q_V = p(drafted[:j]), q(drafted[:j])
      kept = acceptance_probability(p_V[token], q_V[token])
      for other, prob in enumerate(residual(p_V, q_V)):
        finish((*drafted[:j], other), reached * (1 - kept) * prob)
      reached *= kept
    finish(drafted, reached)
  return law


# ---- drafting ----


def lookup(
    text: Sequence[int],
    *,
    num_draft_tokens: int,
    max_ngram: int,
    min_ngram: int,
) -> list[int]:
  """Returns what prompt look-up drafts after a text, [] where nothing matches.

  Of all earlier places that end like the text does, in as many tokens as
  possible up to max_ngram, the latest; and what followed it, going round where
  the text ends.
  """
  text = list(text)
  for length in range(max_ngram, min_ngram - 1, -1):
    for end in range(len(text) - 1, length - 1, -1):
      if text[end - length : end] == text[len(text) - length :]:
        drafted = list(text)
        for j in range(num_draft_tokens):
          drafted.append(drafted[end + j])
        return drafted[len(text) :]
  return []
