"""Task `plan`: what a pod would do, by its real compiler, without the pod.

Compiles prefill, draft step, verify pass and a whole round for the devices of a
topology, and says how much memory they take, which collectives they run, and
how long a token would take plain and speculatively. `config.plan.topology` is a
TPU slice (`v4:2x2x4`; needs libtpu) or `cpu:N`, whose compiler counts as well
but has no latency model.
"""

import contextlib
import dataclasses
import math
import pathlib
import re
import time
from typing import Any

from absl import logging
import jax
from ml_collections import config_dict

from speculative import calibration
from speculative import calibration_report
from speculative import chips
from speculative import config as config_lib
from speculative import sharding
from speculative import topology
from speculative.checkpoints import draft_dir
from speculative.checkpoints import pretrained
from speculative.decoding import verify
from speculative.errors import UserError
from speculative.latency import Machine
from speculative.models import precision as precision_lib
from speculative.models.config import TransformerConfig
from speculative.models.transformer import Transformer
from speculative.planning import plan as plan_lib
from speculative.planning import programs
from speculative.planning.plan import Cost
from speculative.planning.programs import Program
from speculative.planning.programs import Setting
from speculative.planning.work import Part
from speculative.sharding import MeshConfig
from speculative.tasks import plan_report
from speculative.tasks import results
from speculative.tasks.results import TaskResult

_CPU = re.compile(r'cpu:([1-9]\d{0,3})')
# Rates at which the report says what to expect.
_ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
ACCOUNTS = ('none', 'chen2023')


def _shapes(
    name: str, given: config_dict.ConfigDict, field: str, reference: str
) -> TransformerConfig | None:
  """Returns a model's shapes as the config has them, None if it has none."""
  fields = given.to_dict()
  if not fields and not reference:
    raise UserError(
        f'the plan needs the shapes of the {name}: set config.plan.{name} to '
        f'fields of TransformerConfig, or config.{field} to a checkpoint.'
    )
  if not fields:
    return None
  try:
    return TransformerConfig(**fields)
  except TypeError as error:
    raise UserError(f'config.plan.{name}: {error}.') from error


def _first_layers(draft: TransformerConfig, num: int) -> TransformerConfig:
  """Returns a draft of its first layers; 0 is all."""
  if num > draft.num_layers:
    raise UserError(
        f'config.drafter.num_layers is {num}, but config.drafter.model has '
        f'{draft.num_layers} layers; lower it.'
    )
  return dataclasses.replace(draft, num_layers=num or draft.num_layers)


def _devices(name: str) -> tuple[list[jax.Device], chips.Chip | None]:
  """Returns the devices to compile for, and what is known of their chip."""
  match = _CPU.fullmatch(name)
  if not match:
    found = topology.devices(name)
    return list(found.reshape(-1)), chips.find(name)
  num = int(match[1])
  # Refused where a backend has been started; there may be enough of them.
  with contextlib.suppress(RuntimeError):
    jax.config.update('jax_num_cpu_devices', num)
  found = jax.devices('cpu')
  if len(found) < num:
    raise UserError(
        f'config.plan.topology is {name!r}, but jax has started with '
        f'{len(found)} CPU devices; plan in a process of its own.'
    )
  return found[:num], None


def _check(config: config_dict.ConfigDict) -> None:
  plan = config.plan
  for name, least in (('batch', 1), ('prompt_len', 1), ('context', 2)):
    if plan[name] < least:
      raise UserError(
          f'config.plan.{name} needs to be >= {least}, got {plan[name]}.'
      )
  if plan.prompt_len > plan.context:
    raise UserError(
        f'config.plan.prompt_len={plan.prompt_len} is longer than '
        f'config.plan.context={plan.context}; lower it.'
    )
  if not 0 <= plan.acceptance_rate <= 1:
    raise UserError(
        'config.plan.acceptance_rate needs to be in [0, 1], got '
        f'{plan.acceptance_rate}.'
    )
  for name in ('collective_latency_us', 'measured_plain_ms'):
    if plan[name] < 0:
      raise UserError(f'config.plan.{name} needs to be >= 0, got {plan[name]}.')
  if plan.account not in ACCOUNTS:
    raise UserError(
        f'config.plan.account is {plan.account!r}; known: '
        f'{", ".join(ACCOUNTS)}.'
    )
  if plan.batch % config.mesh.data:
    raise UserError(
        f'config.plan.batch={plan.batch} cannot be dealt out to config.mesh.'
        f'data={config.mesh.data}; it needs to be a multiple of that.'
    )
  most = plan_lib.MOST_DRAFT_TOKENS
  if not 1 <= config.decode.num_draft_tokens <= most:
    raise UserError(
        f'config.decode.num_draft_tokens needs to be in 1 to {most} for a '
        f'plan, got {config.decode.num_draft_tokens}.'
    )
  if config.decode.verification not in verify.RULES:
    raise UserError(
        f'config.decode.verification is {config.decode.verification!r}; it '
        f'needs to be one of {", ".join(verify.RULES)}.'
    )
  _check_drafter(config)


def _check_drafter(config: config_dict.ConfigDict) -> None:
  """Refuses what a plan would ignore."""
  drafter = config.drafter
  for name, planned, what in (
      ('kind', ('lm',), 'a draft model alone'),
      ('shape', ('chain',), 'drafted chains'),
      ('dtype', precision_lib.DTYPES, 'a draft that is not quantised'),
  ):
    if drafter[name] not in planned:
      raise UserError(
          f'config.drafter.{name} is {drafter[name]!r}; a plan is for {what}, '
          f'set it to {planned[0]!r}.'
      )
  if drafter.model == 'target':
    raise UserError(
        "config.drafter.model is 'target', whose first layers a plan does not "
        'know as a draft; set config.plan.draft to their shapes instead.'
    )
  if drafter.model.startswith('package://') or draft_dir.is_draft(
      pathlib.Path(drafter.model).expanduser()
  ):
    raise UserError(
        f'config.drafter.model is {drafter.model!r}, a draft that leans on its '
        'target, which a plan does not know; set config.plan.draft to the '
        'shapes of a model instead.'
    )
  if drafter.num_layers < 0:
    raise UserError(
        f'config.drafter.num_layers needs to be >= 0, got {drafter.num_layers}.'
    )
  if drafter.num_layers and config.plan.draft.to_dict():
    raise UserError(
        f'config.drafter.num_layers={drafter.num_layers} is of drafter.model, '
        'but config.plan.draft gives the shapes; set its num_layers there.'
    )


@dataclasses.dataclass(frozen=True)
class _Models:
  """What is planned, before a layout of the draft is chosen.

  Attributes:
    target: shapes.
    draft: shapes.
    mesh: of the devices.
    mesh_config: how sizes that do not divide and logits are treated.
    precision: of both.
    config: of the run.
  """

  target: TransformerConfig
  draft: TransformerConfig
  mesh: jax.sharding.Mesh
  mesh_config: MeshConfig
  precision: precision_lib.Precision
  config: config_dict.ConfigDict

  def _model(self, name: str, shards: int) -> Transformer:
    config = {'target': self.target, 'draft': self.draft}[name]
    placement = sharding.place(
        self.mesh,
        config.axis_sizes,
        name=name,
        shards=shards,
        indivisible=self.mesh_config.indivisible,
        logits=self.mesh_config.logits,
    )
    # Scanned layers compile in a time that does not grow with their number.
    return Transformer(config, self.precision, 'scanned', placement=placement)

  def setting(self, shards: int) -> Setting:
    """Returns what is decoded with the draft over a number of devices."""
    return Setting(
        target=self._model('target', 0),
        draft=self._model('draft', shards),
        num_draft_tokens=self.config.decode.num_draft_tokens,
        batch=self.config.plan.batch,
        prompt_len=self.config.plan.prompt_len,
        context=self.config.plan.context,
        rule=self.config.decode.verification,
    )


def shapes(config: config_dict.ConfigDict) -> dict[str, TransformerConfig]:
  """Checks config.plan and returns the shapes of 'target' and 'draft'.

  Raises:
    UserError: Naming the field.
  """
  _check(config)
  found = {}
  references = {
      'target': ('target.model', config.target.model),
      'draft': ('drafter.model', config.drafter.model),
  }
  for name, (field, reference) in references.items():
    found[name] = _shapes(name, config.plan[name], field, reference)
  for name, (_, reference) in references.items():
    if found[name] is None:
      opened = pretrained.open_pretrained(
          reference, cache_dir=config.cache_dir or None
      )
      found[name] = opened.config
  found['draft'] = _first_layers(found['draft'], config.drafter.num_layers)
  return found


def _open(config: config_dict.ConfigDict) -> tuple[_Models, chips.Chip | None]:
  """Checks the config and finds shapes and devices."""
  mesh_config = config_lib.parse_mesh(config)
  models = shapes(config)
  devices, chip = _devices(config.plan.topology)
  if mesh_config.data * mesh_config.model != len(devices):
    raise UserError(
        f'config.mesh.data={mesh_config.data} times config.mesh.model='
        f'{mesh_config.model} needs to be the {len(devices)} devices of '
        f'{config.plan.topology}.'
    )
  mesh = sharding.make_mesh(
      mesh_config.data, mesh_config.model, devices=devices
  )
  platform = 'cpu' if chip is None else 'tpu'
  precision = precision_lib.choose(config.target.dtype, platform=platform)
  return (
      _Models(
          **models,
          mesh=mesh,
          mesh_config=mesh_config,
          precision=precision,
          config=config,
      ),
      chip,
  )


@dataclasses.dataclass(frozen=True)
class _Compiled:
  """A program, and the passes that are in it."""

  program: Program
  parts: tuple[Part, ...]


def _compile(setting: Setting) -> dict[str, _Compiled]:
  """Compiles all but the draft's steps."""
  target, draft = setting.target, setting.draft
  num, context = setting.num_draft_tokens, setting.context
  scoring = Part(target, num + 1, context)
  # The first draft pass of a round takes two tokens.
  drafting = (Part(draft, 2, context), Part(draft, 1, context, times=num - 1))
  # A row of a prompt attends to half of it on average.
  reading = (
      Part(model, setting.prompt_len, setting.prompt_len // 2)
      for model in (target, draft)
  )
  found = {}
  for name, make, parts in (
      ('plain', programs.plain, (Part(target, 1, context),)),
      ('verify', programs.verify, (scoring,)),
      ('whole', programs.whole_round, (scoring, *drafting)),
      ('prefill', programs.prefill, tuple(reading)),
  ):
    program = make(setting)
    logging.info('%s: compiled in %.0f s', program.name, program.compile_s)
    found[name] = _Compiled(program, parts)
  return found


def _plan(models: _Models, chip: chips.Chip | None) -> plan_report.Plan:
  """Compiles everything and costs it."""
  config = models.config.plan
  setting = models.setting(models.config.drafter.shards)
  plan_lib.check_measured(setting, chip, config.measured_plain_ms)
  if chip is not None:
    plan_lib.check_fits(setting, chip)
  compiled = _compile(setting)

  def cost(name: str, machine: Machine | None) -> Cost:
    return plan_lib.cost(
        compiled[name].program,
        compiled[name].parts,
        batch=setting.batch,
        machine=machine,
    )

  machine = plan_lib.make_machine(
      chip,
      cost('plain', None).work,
      collective_latency_us=config.collective_latency_us,
      measured_plain_ms=config.measured_plain_ms,
  )
  costs = {name: cost(name, machine) for name in compiled}
  room_gib = math.inf
  if chip is not None:
    most = max(c.program.memory_bytes for c in compiled.values()) / 2**30
    beside = max(0.0, most - plan_lib.held_gib(setting))
    room_gib = chip.usable_hbm_gib - beside
  return plan_report.Plan(
      setting=setting,
      chip=chip,
      machine=machine,
      topology=config.topology,
      acceptance=config.acceptance_rate,
      layouts=plan_lib.draft_layouts(
          setting, models.setting, machine, room_gib=room_gib
      ),
      acceptances=_ACCEPTANCES,
      **costs,
  )


def _write(
    plan: plan_report.Plan,
    found: dict[str, Any],
    config: config_dict.ConfigDict,
    path: pathlib.Path,
) -> None:
  """Writes the workdir, and prints the report without its appendix."""
  workdir = results.Workdir(path, config)
  for row in found['rows']:
    workdir.metric(row)
  text = plan_report.render(plan)
  if config.plan.account == 'chen2023':
    text += '\n' + calibration_report.render(calibration.account())
  appendix = plan_report.appendix(plan)
  results.write_text(workdir.path / 'plan.md', f'{text}\n{appendix}')
  workdir.finish(found)
  print(text, end='')


def run(config: config_dict.ConfigDict, path: pathlib.Path) -> TaskResult:
  """Compiles for a topology and predicts.

  Args:
    config: of the run.
    path: of the workdir; plan.md gets the report.

  Returns:
    The TaskResult.

  Raises:
    UserError: Before anything is written: for a topology that does not exist,
      sizes that do not divide, or models that do not fit.
  """
  started = time.perf_counter()
  models, chip = _open(config)
  plan = _plan(models, chip)
  devices = models.mesh.devices.reshape(-1)
  found = plan_report.values(plan) | results.versions()
  found |= {
      'plan/seconds': round(time.perf_counter() - started, 1),
      'env/device_kind': devices[0].device_kind,
      'env/device_count': len(devices),
      'env/dtype': models.precision.dtype,
  }
  _write(plan, found, config, path)
  return TaskResult(found)
