"""Setting of policies: the job, what its text adds, our plans for it, and what changes cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import NamedTuple

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.fleet.traces.trace import duration_text
from recycle_compiler.frontend.check import read_names
from recycle_compiler.frontend.diagnostics import Mistakes
from recycle_compiler.frontend.gpt_model import MOST_LAYERS, GptModel
from recycle_compiler.frontend.load import parse_for_format
from recycle_compiler.frontend.shape import read_shape
from recycle_compiler.frontend.values import read_whole
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_runtime.plan.plan_choice import Planned

LAYERS_PER_STAGE = 8
"""Default layers per stage for policies that re-cut. GPT-3 3.35B and 6.7B have 7 to 8 on four stages."""
_COPIED_BYTES = 14
"""Per parameter, of what a worker copies: a bf16 weight, its fp32 master, Adam's two moments."""
_SMALL_MODEL, _LARGE_MODEL = 0.35e9, 6.7e9
"""Parameters of the models between which the published costs of other systems lie."""
_FREE_CHECKPOINTS = 600.0
"""Seconds from one checkpoint to the next that is written while training goes on; also where saves stop
training and nothing is known of failures. Assumed."""
_QUICK_OPS = 5_000
_FEW_PLANS = 8
"""A plan on demand takes up to a second in a job of so many ops, longer in larger ones."""


_LEAST_INTERVAL = 1.0
"""Seconds; no job saves more often."""


@dataclass(frozen=True, slots=True)
class ChangeCosts:
    """Costs of going on after a change, in seconds unless said otherwise."""

    detection: float = 0.103
    """Ours: from the end of a process to the coordinator's knowledge. Measured on an H200, 12 workers
    (docs/recovery.md); a process that hangs instead is noticed after 1.63."""
    regroup: float = 0.052
    """Ours: from there to the first instruction of the next plan. Measured in the same runs: 0.155 less
    0.103 after a kill, 0.046 after a hang, and 0.050 to 0.078 when a worker comes back. Several nodes were
    never measured."""
    undone: float = 0.5
    """Ours: share of an iteration that is redone after a failure. It breaks off at any moment, so half."""
    copy_rate: float = 1e9
    """Bytes a second that one worker gets from another when it moves or comes back; what the runtime reckons
    with before it has seen a copy (docs/replanning.md)."""
    memory_rate: float = 5e9
    """Bytes a second that a worker copies into the memory of its own node while training waits
    (`--neighbour-copies`). Measured on a CPU (docs/recovery.md): 512 MiB in 0.10 s, once there is memory."""
    start_up: float = 20.0
    """Until the process of a returned or spare machine has started and built its stage; the others train.
    Restarts of whole jobs include it."""
    planning: float = 1.7
    """Ours: to make a plan for exactly the failures that there are, in the background. Median of
    `recyclec plan` on 2,048 GPUs (docs/benchmarks.md)."""
    expected_change: float = 3600.0
    """Ours: seconds to the next change, as expected in the beginning (`recycle-run --mtbf`)."""
    checkpoint_every: float | None = None
    """Seconds of training from one checkpoint to the next, for every policy that restarts from checkpoints.
    None: where saves stop training, the interval of Young and Daly for the failures of the trace; else
    600."""
    checkpoint_save: float | None = None
    """Seconds that training stands still for a checkpoint; None: 11 to 120 by the model's size, as
    published for Varuna."""
    checkpoint_load: float | None = None
    """Seconds to read one back; None: as long as a save."""
    restart: float = 60.0
    """Seconds until all processes of a job have been restarted and have met; ours, a round number."""
    reconfiguration: float | None = None
    """Oobleck: seconds to re-instantiate pipelines; None: 2 to 10 by the model's size, as published."""
    rendezvous: float = 30.0
    """Bamboo: seconds of the global rendezvous when too many fail, as published."""
    communicator: float = 1.0
    """ElasWave: seconds to edit the communicators in place; published as under 1."""
    replica_pause: float = 11.3
    """torchft: seconds without steps after a replica has failed. Measured beside ours on MIG devices, with
    the timeout of 10 s that its examples have (docs/gpu.md); FT-HSDP publishes 180 on 100,000 GPUs."""
    replica_join: float = 1.3
    """torchft: seconds without steps when a replica returns. Measured in the same runs."""
    expert_copies: float = 2.0
    """Lazarus: workers of a stage that have each expert at least. As many as ours has owners by default."""
    swap: float = 40.0
    """In-process restart: seconds until a spare has taken the place of a failed machine. Published for
    DeadPool as under 40 on 512 GPUs; FlashRecovery publishes 150 on 4,800 devices."""
    one_gpu: float = 0.27
    """ntp: share of failures that take one GPU of a worker and leave the others. Those of class GPU among the
    faults of InfiniteHBD's trace: 158 of 584; that each of them took one GPU is assumed."""

    def origin(self, *names: str) -> str:
        """`measured`, `published` or `assumed`, in the order of these costs; `given` where one is not the
        default."""
        default = ChangeCosts()
        if any(getattr(self, name) != getattr(default, name) for name in names):
            return "given"
        return " and ".join(dict.fromkeys(_ORIGINS.get(name, "assumed") for name in names))


_ORIGINS = {
    **dict.fromkeys(("detection", "regroup", "replica_pause", "replica_join"), "measured"),
    **dict.fromkeys(("memory_rate", "planning"), "measured"),
    **dict.fromkeys(("checkpoint_save", "reconfiguration", "rendezvous", "communicator"), "published"),
    "swap": "published",
}
"""Costs whose defaults are not assumed."""


def best_interval(save: float, failure_interval: float) -> float:
    """Seconds of training between two saves that lose least to saves and to work done again.

    Young's sqrt(2 x save x interval), with Daly's higher-order terms (Future Generation Computer Systems 22,
    2006); where saves take longer than half of the time between failures, one save in that time.
    """
    if failure_interval == inf or save >= 2 * failure_interval:
        return failure_interval
    if not save:
        return _LEAST_INTERVAL
    part = save / (2 * failure_interval)
    interval = sqrt(2 * save * failure_interval) * (1 + sqrt(part) / 3 + part / 9) - save
    return max(interval, _LEAST_INTERVAL)


class CutPlans(NamedTuple):
    """Our plans under another cut of a job in layers."""

    job: JobSpec
    """The derived one: its stages are those of the cut."""
    plans: tuple[Planned, ...]


@dataclass(frozen=True, slots=True)
class FleetSetting:
    """Everything that a policy may know about the job before it begins."""

    job: JobSpec
    plans: tuple[Planned, ...]
    """Ours, for each number of failures that the bundle has plans for, fewest first."""
    layers: tuple[int, ...]
    """Layers on each stage, for policies that re-cut the model."""
    costs: ChangeCosts
    one_f_one_b: int
    """Ticks of one iteration of 1F1B on the healthy grid."""
    second_ticks: float = 1e9
    """Ticks in a second: one tick is 1 ns, or 1/1000 slot where the job is in slots."""

    exact_plans: int = 0
    """For how many failure patterns that the bundle does not have the simulation makes a plan; the period of
    others is estimated from bounds."""
    recuts: tuple[CutPlans, ...] = ()
    """Ours under other cuts."""
    failure_interval: float | None = None
    """Seconds between failures of the job in the trace, on average; None where no trace is known."""
    spares_have_state: bool = False
    """True if spare machines hold the state of every stage, so that nothing is copied to them."""
    seed: int = 0
    """Of what a policy draws at random."""
    neighbour_copies: int = 0
    """Ours: steps from one copy in neighbours' memory to the next, as `recycle-run` has them; 0: none."""

    def seconds(self, ticks: float) -> float:
        return ticks / self.second_ticks

    def rate(self, period: float) -> float:
        """Iterations a second of a period in ticks."""
        return self.second_ticks / period

    @property
    def parameters(self) -> float | None:
        """Of the whole model; None where the job does not say what a worker holds."""
        copied = sum(self.job.parameters) * self.job.tensor
        return copied / _COPIED_BYTES if copied else None

    def by_size(self, small: float, large: float) -> float:
        """A cost that is known for a model of 0.35 and one of 6.7 billion parameters, at this model's size.

        In between it grows with the parameters, outside it stays at what was published. A job that does not
        say its size counts as small.
        """
        parameters = self.parameters or _SMALL_MODEL
        share = (parameters - _SMALL_MODEL) / (_LARGE_MODEL - _SMALL_MODEL)
        return small + (large - small) * min(1.0, max(0.0, share))

    @property
    def checkpoint_save(self) -> float:
        """Seconds."""
        given = self.costs.checkpoint_save
        return self.by_size(11.0, 120.0) if given is None else given

    @property
    def checkpoint_every(self) -> float:
        """Seconds of training between two checkpoints that training stops for."""
        if self.costs.checkpoint_every is not None:
            return self.costs.checkpoint_every
        if self.failure_interval is None:
            return _FREE_CHECKPOINTS
        return best_interval(self.checkpoint_save, self.failure_interval)

    @property
    def saving(self) -> float:
        """Share of the time that these checkpoints take."""
        every, save = self.checkpoint_every, self.checkpoint_save
        return 0.0 if every == inf else save / (every + save)

    @property
    def from_checkpoint(self) -> float:
        """Seconds until a job that fails altogether goes on from a checkpoint."""
        return self.costs.detection + self.costs.restart + self.checkpoint_load

    @property
    def copy_travel(self) -> float:
        """Seconds until the state of a stage is on another worker."""
        return max(self.job.parameters) / self.costs.copy_rate

    @property
    def copying(self) -> float:
        """Share of the time that copies into the memory of nodes take, by steps of the fewest failures."""
        if not self.neighbour_copies:
            return 0.0
        pause = max(self.job.parameters) / self.costs.memory_rate
        period = min((plan.period for plan in self.plans), default=self.one_f_one_b)
        return pause / (self.neighbour_copies * self.seconds(period) + pause)

    @property
    def saves_text(self) -> str:
        """Interval at which checkpoints stop training, and for how long."""
        if self.checkpoint_every == inf:
            return "no checkpoints, since nothing fails"
        chosen = ""
        if self.costs.checkpoint_every is None and self.failure_interval is not None:
            chosen = f" (Young and Daly, a failure every {duration_text(round(self.failure_interval))})"
        save = f"{self.checkpoint_save:.0f} s ({self.costs.origin('checkpoint_save')})"
        return f"a checkpoint of {save} every {self.checkpoint_every:.0f} s{chosen}"

    @property
    def restart_text(self) -> str:
        """Length of a restart of all processes from a checkpoint, and its origin."""
        origin = self.costs.origin("restart", "checkpoint_load")
        return f"a restart takes {self.costs.restart + self.checkpoint_load:.0f} s ({origin})"

    @property
    def free_checkpoints_every(self) -> float:
        """Seconds between checkpoints that are written in the background."""
        given = self.costs.checkpoint_every
        return _FREE_CHECKPOINTS if given is None else given

    @property
    def checkpoint_load(self) -> float:
        """Seconds."""
        given = self.costs.checkpoint_load
        return self.checkpoint_save if given is None else given


@dataclass(frozen=True, slots=True)
class Known:
    """Facts that a user or the text of a job adds to a JobSpec; None where neither gives them."""

    layers: tuple[int, ...] | None = None
    """On each stage."""
    slot: float = 1.0
    """Seconds of a slot, for jobs in slots."""
    costs: ChangeCosts = field(default_factory=ChangeCosts)
    exact_plans: int | None = None
    """None: a few where plans are made quickly, none in larger jobs."""


def make_setting(
    job: JobSpec, plans: Sequence[Planned], known: Known | None = None, recuts: Sequence[CutPlans] = ()
) -> FleetSetting:
    """A setting of a job and its plans."""
    known = known or Known()
    return FleetSetting(
        job=job,
        plans=tuple(sorted(plans, key=lambda plan: (sum(plan.counts), plan.period))),
        layers=known.layers or (LAYERS_PER_STAGE,) * job.stages,
        costs=known.costs,
        one_f_one_b=one_f_one_b_period(job),
        exact_plans=_exact_plans(job) if known.exact_plans is None else known.exact_plans,
        second_ticks=1e9 if job.unit != "slot" else job.ticks_per_unit / known.slot,
        recuts=tuple(recuts),
    )


def _exact_plans(job: JobSpec) -> int:
    return _FEW_PLANS if 3 * job.workers * job.microbatches <= _QUICK_OPS else 0


class SaidInText(NamedTuple):
    """None where the text says nothing."""

    samples: int | None = None
    """In an iteration."""
    layers: tuple[int, ...] | None = None
    """On each stage."""


def read_said(source: str) -> SaidInText:
    """Samples and layers that the text gives; none if it cannot be read, since the job itself has been."""
    report = Mistakes(source, "")
    try:
        sections = read_names(parse_for_format(source, ""), report)
        shape = read_shape(sections, report)
        report.raise_if_any()
    except CompileError:
        return SaidInText()
    if not (shape.pipelines and shape.microbatches and shape.stages):
        return SaidInText()
    samples = shape.pipelines * shape.microbatches * shape.micro if shape.micro else None
    setting = sections["model"].settings.get("layers") if "model" in sections else None
    layers = read_whole(setting, report, shape.stages, MOST_LAYERS) if setting else None
    return SaidInText(samples, spread_layers(layers, shape.stages) if layers else None)


def spread_layers(layers: int, stages: int) -> tuple[int, ...]:
    """As the cost model spreads them."""
    return GptModel(layers, 1, 1, 1, 1).layers_per_stage(stages)


def on_pipelines(job: JobSpec, pipelines: int) -> JobSpec:
    """The job on so many pipelines: each does its part of the batch, rounded up."""
    each = -(-job.pipelines * job.microbatches // pipelines)
    return replace(job, pipelines=pipelines, microbatches=each, failures=0, vacant=0)
