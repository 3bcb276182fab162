from speculative.tasks import progress
from speculative.tasks.progress import Progress


def test_the_time_left_is_of_what_this_run_has_to_do(monkeypatch):
  now, said = [0.0], []
  monkeypatch.setattr(progress.time, 'monotonic', lambda: now[0])
  monkeypatch.setattr(
      progress.logging, 'info', lambda text, *args: said.append(text % args)
  )
  made = Progress('x', 1000)
  made.skip(800)
  now[0] = 60.0
  assert made.step(50, 120) == {'x/new_tokens': 120, 'x/tokens_per_s': 2.0}
  # 150 of the 200 left, at 50 a minute.
  assert said == ['x: 50 of 200, 120 tokens, 2 tokens/s, 3 min left']
