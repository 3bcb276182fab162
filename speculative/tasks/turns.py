"""Conversations of several turns: the first answered, the last left to ask."""

from collections.abc import Sequence
import dataclasses

from absl import logging

from speculative import api
from speculative.bench import task_sets
from speculative.bench.prompts import Prompt
from speculative.decoding.config import DecodeConfig
from speculative.drafting.config import DrafterConfig


def answer_first(
    model: api.LanguageModel,
    prompts: Sequence[Prompt],
    decode: DecodeConfig,
    *,
    drafter: DrafterConfig,
    batch_size: int,
) -> list[Prompt]:
  """Returns prompts of the last turns, after the model's answers to the others.

  Every setting is then asked the same, whoever it is compared with.

  Args:
    model: with its weights loaded.
    prompts: those without next_turns are left as they are.
    decode: how to answer; the first prompt has its seed, the next the next.
    drafter: that answers.
    batch_size: prompts answered at once.
  """
  prompts = list(prompts)
  while waiting := [i for i, p in enumerate(prompts) if p.next_turns]:
    logging.info('Answering %d earlier turn(s) ...', len(waiting))
    for start in range(0, len(waiting), batch_size):
      some = waiting[start : start + batch_size]
      seeds = [{'seed': decode.seed + i} for i in some]
      result = model.generate(
          [_encode(model, prompts[i]) for i in some],
          drafter=drafter,
          rows=seeds,
          **_shared(decode),
      )
      for i, text in zip(some, result.texts, strict=True):
        prompts[i] = task_sets.next_turn(prompts[i], text)
  return prompts


def follow(
    prompts: Sequence[Prompt], answers: Sequence[Sequence[str]]
) -> list[Prompt]:
  """Returns prompts of the last turns, after answers that are known.

  Args:
    prompts: as `answer_first` takes them.
    answers: to the earlier turns of each.
  """
  found = []
  for prompt, of_prompt in zip(prompts, answers, strict=True):
    for answer in of_prompt:
      prompt = task_sets.next_turn(prompt, answer)
    found.append(prompt)
  return found


def _encode(model: api.LanguageModel, prompt: Prompt) -> list[int]:
  return model.encode(prompt.said, chat_template=prompt.chat_template)


def _shared(decode: DecodeConfig) -> dict[str, object]:
  """Returns the fields that all rows have alike."""
  fields = {f.name: getattr(decode, f.name) for f in dataclasses.fields(decode)}
  return {k: v for k, v in fields.items() if k != 'seed'}
