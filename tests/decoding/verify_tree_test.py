"""Both rules of acceptance, tree by tree; the sampled one in closed form."""

import functools
import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from speculative.decoding import sampling as sampling_lib
from speculative.decoding import verify
from speculative.decoding import verify_tree
from speculative.testing import oracles
from speculative.testing import samplers
from speculative.testing import trees

# Sums of float64 products.
_ATOL = 1e-12
# Neither kept nor refused by any law: outside [0, 1].
_KEEP, _REFUSE = -1.0, 2.0


@pytest.mark.parametrize('parents', trees.PARENTS.values(), ids=trees.PARENTS)
def test_one_draw_a_node_emits_what_plain_decoding_draws(parents):
  """Every tree of two tokens against every way the draws can fall."""
  M = len(parents)
  tokens = np.array(list(itertools.product(range(2), repeat=M)))
  rng = np.random.default_rng(0)
  if len(tokens) > 64:
    tokens = tokens[rng.choice(len(tokens), 64, replace=False)]
  draws = np.array(list(itertools.product(range(2), repeat=M + 1)))
  valid = rng.random((len(tokens), M)) < 0.8
  for m, parent in enumerate(parents):
    if parent >= 0:
      valid[:, m] &= valid[:, parent]
  pairs = [np.repeat(x, len(draws), axis=0) for x in (tokens, valid)]
  draws_BT = np.tile(draws, (len(tokens), 1))
  verdict = verify_tree.match_draws(
      trees.make(parents, *pairs), jnp.asarray(draws_BT, jnp.int32)
  )
  verdict = jax.tree.map(np.asarray, verdict)
  for b, (tokens_M, valid_M, draws_T) in enumerate(
      zip(*pairs, draws_BT, strict=True)
  ):
    row, path, tried = 0, [], True
    while True:
      children = [m for m in range(M) if parents[m] + 1 == row and valid_M[m]]
      tried = bool(children)
      same = [m for m in children if tokens_M[m] == draws_T[row]]
      # Of twins any may be followed; the draws below them differ here, so the
      # one with the longer path, and of equals the first.
      if not same:
        break
      if len(same) > 1:
        row = None
        break
      row, path = same[0] + 1, [*path, same[0]]
    if row is None:
      continue
    assert verdict.num_accepted_B[b] == len(path)
    assert verdict.num_tested_B[b] == len(path) + tried
    assert verdict.next_token_B[b] == draws_T[row]
    kept = verdict.path_BA[b]
    np.testing.assert_array_equal(kept[: len(path)], path)
    assert (kept[len(path) :] == -1).all()


def test_twins_are_followed_where_more_is_kept():
  """A real target's draws below twins agree; a longer subtree keeps more."""
  tree = trees.make((-1, -1, 1), [[5, 5, 6]])
  verdict = verify_tree.match_draws(tree, jnp.asarray([[5, 6, 6, 7]]))
  np.testing.assert_array_equal(verdict.path_BA, [[1, 2]])
  assert verdict.next_token_B[0] == 7


@pytest.mark.parametrize('num_valid', [0, 2, 4])
def test_a_tree_without_branches_is_decided_as_a_chain(num_valid):
  J, B = 4, 64
  rng = np.random.default_rng(1)
  tokens_BJ = jnp.asarray(rng.integers(0, 2, (B, J)), jnp.int32)
  draws_BT = jnp.asarray(rng.integers(0, 2, (B, J + 1)), jnp.int32)
  valid_BJ = jnp.broadcast_to(jnp.arange(J) < num_valid, (B, J))
  expected = verify.match_draws(tokens_BJ, valid_BJ, draws_BT)
  got = verify_tree.match_draws(
      trees.make((-1, 0, 1, 2), tokens_BJ, valid_BJ), draws_BT
  )
  for name in ('num_accepted_B', 'num_tested_B', 'next_token_B'):
    np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))


@pytest.mark.parametrize('parents', trees.PARENTS.values(), ids=trees.PARENTS)
def test_a_walk_decides_what_draws_at_all_rows_do(parents):
  B, M, V = 256, len(parents), 3
  rng = np.random.default_rng(3)
  # Siblings differ.
  seen = {}
  tokens_BM = np.zeros((B, M), np.int32)
  for m, parent in enumerate(parents):
    nth = seen[parent] = seen.get(parent, -1) + 1
    tokens_BM[:, m] = (tokens_BM[:, parent] * (parent >= 0) + nth + m) % V
  tree = trees.make(parents, tokens_BM)
  sampling = samplers.sampling(B, temperature=[0.0, 1.0] * (B // 2))
  logits_BTV = jnp.asarray(rng.normal(size=(B, M + 1, V)), jnp.float32)
  positions_BT = tree.depth_BT + 5
  draws_BT = sampling_lib.draw(
      sampling, logits_BTV, positions_BT, use=sampling_lib.TARGET
  )
  expected = verify_tree.match_draws(tree, draws_BT)
  got = verify_tree.verify_tree(
      sampling, logits_BTV, positions_BT, tree=tree, draft_probs_BPV=None
  )
  assert np.asarray(got.num_accepted_B).max() > 0
  jax.tree.map(np.testing.assert_array_equal, got, expected)


# ---- sampled trees, in closed form ----


@pytest.fixture
def float64():
  """Rounding of float32 would hide a small bias."""
  jax.config.update('jax_enable_x64', True)
  yield
  jax.config.update('jax_enable_x64', False)


def _law(seed: int, V: int, zeros: float) -> oracles.Law:
  """Returns a law that depends on the whole text before, some tokens zero."""

  @functools.cache
  def law(text: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng([seed, len(text), *text])
    weights = rng.random(V) ** 2 * (rng.random(V) >= zeros)
    weights[rng.integers(V)] += 0.1
    return weights / weights.sum()

  return law


def _drafted(parents, q, V, replacement):
  """Returns every tree that can be drafted, its chance and its valid nodes."""
  drafts = [((), 1.0, ())]
  for m, parent in enumerate(parents):
    grown = []
    for tokens, chance, valid in drafts:
      text = tuple(tokens[n] for n in trees.path_to(parents, parent + 1))
      q_V = q(text)
      if replacement == 'without':
        q_V = q_V.copy()
        for n in range(m):
          if parents[n] == parent and valid[n]:
            q_V[tokens[n]] = 0
      alive = parent < 0 or valid[parent]
      if not alive or not q_V.any():
        grown.append(((*tokens, 0), chance, (*valid, False)))
        continue
      q_V = q_V / q_V.sum()
      for x in np.flatnonzero(q_V):
        grown.append(((*tokens, int(x)), chance * q_V[x], (*valid, True)))
    drafts = grown
  tokens, chances, valid = zip(*drafts, strict=True)
  return np.array(tokens), np.array(chances), np.array(valid)


class _Rejection:
  """Runs the package's own rule, with the numbers that decide it as given."""

  def __init__(self, parents, p, q, V, replacement):
    self.parents, self.V, self.p = parents, V, p
    self.tokens_BM, self.chance_B, self.valid_BM = _drafted(
        parents, q, V, replacement
    )
    B, M = self.tokens_BM.shape

    def laws(law, rows):
      return np.stack(
          [[law(self.text(b, row)) for row in rows] for b in range(B)]
      )

    tree = trees.make(parents, self.tokens_BM, self.valid_BM)
    p_BTV, q_BPV = laws(p, range(M + 1)), laws(q, range(max(parents) + 2))
    taken = []

    def categorical(keys_B1, law_B1V):
      taken.append(law_B1V[:, 0])
      return jnp.zeros(keys_B1.shape[:2], jnp.int32)

    @jax.jit
    def run(u_BM):
      with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling_lib, 'uniform', lambda keys_BM: u_BM)
        patch.setattr(sampling_lib, 'categorical', categorical)
        verdict = verify_tree.reject_recursively(
            samplers.sampling(B, temperature=1.0),
            jnp.zeros((B, M + 1), jnp.int32),
            tree=tree,
            draft_probs_BPV=jnp.asarray(q_BPV),
            target_probs_BTV=jnp.asarray(p_BTV),
            replacement=replacement,
        )
      return verdict.path_BA, taken.pop()

    self._run = run

  def text(self, b, row):
    nodes = trees.path_to(self.parents, row)
    return tuple(int(self.tokens_BM[b, n]) for n in nodes)

  def kept(self, u_BM, m):
    """Tells where node m is on the path kept."""
    path_BA, _ = self._run(jnp.asarray(u_BM))
    return (np.asarray(path_BA) == m).any(axis=1)

  def numbers(self, m):
    """Returns numbers that keep all above node m and refuse all else."""
    u_BM = np.full(self.tokens_BM.shape, _REFUSE)
    if m >= 0:
      u_BM[:, trees.path_to(self.parents, m + 1)] = _KEEP
    return u_BM

  def chances(self):
    """Returns [B, M]: the chance that a node is kept once it is tried."""
    h_BM = np.zeros(self.tokens_BM.shape)
    for m in range(len(self.parents)):
      low_B, high_B = np.zeros(len(h_BM)), np.ones(len(h_BM))
      u_BM = self.numbers(m)
      for _ in range(60):
        u_BM[:, m] = (low_B + high_B) / 2
        kept_B = self.kept(u_BM, m)
        low_B = np.where(kept_B, u_BM[:, m], low_B)
        high_B = np.where(kept_B, high_B, u_BM[:, m])
      h_BM[:, m] = np.where(self.valid_BM[:, m], high_B, 0)
    # Below the last bit that 60 halvings leave.
    h_BM[h_BM < 1e-17] = 0
    return h_BM

  def law(self):
    """Returns the law of the first A + 1 tokens, and the mean number kept."""
    parents, V = self.parents, self.V
    length = max(trees.depths(parents)) + 1
    h_BM = self.chances()
    law = dict.fromkeys(itertools.product(range(V), repeat=length), 0.0)
    mean = 0.0

    def finish(text, weight):
      if len(text) == length:
        law[text] += weight
        return
      for token, prob in enumerate(self.p(text)):
        if weight * prob:
          finish((*text, token), weight * prob)

    for row in range(len(parents) + 1):
      weight_B = self.chance_B.copy()
      for node in trees.path_to(parents, row):
        for sibling in range(node):
          if parents[sibling] == parents[node]:
            weight_B = weight_B * (1 - h_BM[:, sibling])
        weight_B = weight_B * h_BM[:, node]
      for child, parent in enumerate(parents):
        if parent + 1 == row:
          weight_B = weight_B * (1 - h_BM[:, child])
      weight_B = np.where(row and ~self.valid_BM[:, row - 1], 0, weight_B)
      _, law_BV = self._run(jnp.asarray(self.numbers(row - 1)))
      law_BV = np.asarray(law_BV)
      mean += weight_B.sum() * len(trees.path_to(parents, row))
      merged = {}
      for b in np.flatnonzero(weight_B):
        merged.setdefault(self.text(b, row), np.zeros(V))
        merged[self.text(b, row)] += weight_B[b] * law_BV[b]
      for text, law_V in merged.items():
        for token, weight in enumerate(law_V):
          if weight:
            finish((*text, token), weight)
    return law, mean


@pytest.mark.usefixtures('float64')
@pytest.mark.parametrize('replacement', ['with', 'without'])
@pytest.mark.parametrize('zeros', [0.0, 0.4])
@pytest.mark.parametrize(
    'name, V',
    [
        ('one node', 3),
        ('chain', 2),
        ('siblings', 4),
        ('binary', 3),
        ('not breadth-first', 2),
        ('deep and wide', 2),
        pytest.param('deep and wide', 3, marks=pytest.mark.slow),
    ],
)
def test_sampled_trees_keep_the_law(name, V, zeros, replacement):
  parents = trees.PARENTS[name]
  p, q = _law(1, V, zeros), _law(2, V, zeros)
  found = _Rejection(parents, p, q, V, replacement)
  assert found.chance_B.sum() == pytest.approx(1, abs=_ATOL)
  law, _ = found.law()
  expected = oracles.text_law(p, V, max(trees.depths(parents)) + 1)
  np.testing.assert_allclose(
      list(law.values()), list(expected.values()), atol=_ATOL, rtol=0
  )


@pytest.mark.usefixtures('float64')
def test_more_siblings_keep_more_and_without_replacement_most():
  p, q = _law(1, 4, 0.0), _law(2, 4, 0.0)

  def kept(num, replacement):
    return _Rejection((-1,) * num, p, q, 4, replacement).law()[1]

  one = kept(1, 'with')
  assert one == pytest.approx(np.minimum(p(()), q(())).sum(), abs=_ATOL)
  assert kept(3, 'without') > kept(3, 'with') > one
  # All tokens drafted: one of them is it.
  assert kept(4, 'without') == pytest.approx(1, abs=_ATOL)


@pytest.mark.usefixtures('float64')
def test_the_enumeration_notices_a_wrong_residual(monkeypatch):
  """As where the second sibling is held against the target's whole law."""
  p, q = _law(1, 3, 0.0), _law(2, 3, 0.0)
  monkeypatch.setattr(
      verify_tree, 'after_refusal', lambda p_BV, q_BV, *_: (p_BV, q_BV)
  )
  law, _ = _Rejection((-1, -1), p, q, 3, 'with').law()
  expected = oracles.text_law(p, 3, 2)
  errors = np.array(list(law.values())) - np.array(list(expected.values()))
  assert abs(errors).max() > 1e-3
