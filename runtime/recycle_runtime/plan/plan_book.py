"""All plans that a running job can use: its bundle, and what was planned since. Standard library only.

A plan for exactly as many failures on each stage fits as it is. Where there is none, one for more failures
fits too: live workers that it has no stream for are standbys. They take part in collectives and optimizer
steps, so that their parameters stay those of their peers, and get no micro-batches. Some may be standbys on
purpose, because they are slow. A plan in which slow workers have less to do than their peers is for exactly
those who were live when it was made.

A job in layers may have plans of several cuts. Each cut has a grid of its own, and a book with the plans of
that grid; the books of a job are a family, the one of the job's own cut first.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.isa import SERVES, USES_MICROBATCH, Instruction, Opcode
from recycle_runtime.plan.moves import Counts, failed_counts
from recycle_runtime.plan.plan_choice import Planned, quickest_fit, quickest_placement
from recycle_runtime.plan.recut import LayerRange, layout_text, stage_ranges

_OF_ROUNDS = frozenset(Opcode) - USES_MICROBATCH
_WITHOUT_MICROBATCHES = _OF_ROUNDS - SERVES
_SERVED = {
    Opcode.FORWARD: Opcode.SERVE_FORWARD,
    Opcode.BACKWARD: Opcode.SERVE_BACKWARD,
    Opcode.BACKWARD_INPUT: Opcode.SERVE_BACKWARD_INPUT,
    Opcode.BACKWARD_WEIGHT: Opcode.SERVE_BACKWARD_WEIGHT,
}


class Assignment(NamedTuple):
    """A plan, and the role that each live worker has in it."""

    bundle: int
    """Number of the bundle in the book."""
    plan: int
    roles: dict[Worker, Worker]
    """From a worker's place to the worker whose stream it runs."""
    standbys: int
    """Number of live workers that run no micro-batches."""
    period: int
    """As planned, in ticks."""
    on_purpose: bool = False
    """True if the standbys are meant to be that."""

    @property
    def is_exact(self) -> bool:
        return self.standbys == 0 or self.on_purpose


class Fitted(NamedTuple):
    """Whom a plan was made for, worker by worker."""

    live: frozenset[Worker]
    slow: dict[Worker, float]
    """Those of them that have less to do, each with how many times longer it takes than its peers."""


class PlanBook:
    """The plans of a job for one grid; the first bundle is the one that the job was started with."""

    def __init__(self, bundle: Bundle, family: "list[PlanBook] | None" = None) -> None:
        """Without a family, one begins here: with a book for every other cut that the bundle has plans of."""
        if bundle.groups and not family:
            raise BundleError("a job cannot begin with groups of pipelines that have cuts of their own")
        self.family: list[PlanBook] = [] if family is None else family
        self.bundles: list[Bundle] = self.family[0].bundles if self.family else []
        """Of the whole family: orders to processes count on these numbers."""
        self.cut = bundle.cut
        """Number of layers of each chunk; empty when the job is not in layers."""
        self.groups = bundle.groups
        """Of pipelines with cuts of their own: for each the stage that holds each chunk; mostly none."""
        self.ranges = layers_of_stages(bundle)
        """The layers of each stage; none when the job is not in layers."""
        self.stages, self.pipelines = bundle.stages, bundle.pipelines
        self.grid: tuple[Worker, ...] = tuple(
            (pipeline, stage) for stage in range(self.stages) for pipeline in range(self.pipelines)
        )
        """All workers that the job could have."""
        self.loss_stages = frozenset(bundle.holders[-1])
        """Stages whose workers hold the last chunk of the model."""
        self.has_shards = bundle.owners > 0
        """True if optimizer state is in shards, so that no worker holds all of its stage."""
        self.slots = bundle.slots
        """Of each worker, for the experts of every mixture that peers share; 0: they share none."""
        self.once = frozenset(bundle.chunk_stages)
        """Stages that hold every chunk once: all, or those of the first group."""
        self.units = bundle.pipelines * bundle.microbatches
        """Micro-batches of a step."""
        self.standby: frozenset[Worker] = frozenset()
        """They get no micro-batches wherever there is a plan for exactly the other workers."""
        self.fitted: int | None = None
        """The bundle whose only plan is used by those it was made for, while no other worker is there."""
        self._grid = grid_shape(bundle)
        self._made_for: dict[int, Fitted] = {}
        self._numbers: list[int] = []
        """Of the bundles that are for this grid."""
        self._jobs: dict[str, int] = {}
        """The jobs of these bundles, which differ in their op times, in the order in which they came."""
        self._planned: dict[tuple[int, int], Planned] = {}
        """Plans that are for anybody, by the numbers of bundle and plan."""
        self.family.append(self)
        self.add(bundle)
        for recut in bundle.recuts:
            self.add(recut)

    @property
    def is_own(self) -> bool:
        """True if this is the cut that the job starts with."""
        return self is self.family[0]

    @property
    def split(self) -> int:
        """Into how many parts, one or two, plans of this book split every micro-batch of the job."""
        return self.units // self.family[0].units

    @property
    def first(self) -> Bundle:
        """The first bundle for this grid."""
        return self.bundles[self._numbers[0]]

    def with_bundle(self, number: int) -> "PlanBook":
        """The book of the family that a bundle is in."""
        return next(book for book in self.family if number in book._numbers)

    def has(self, worker: Worker) -> bool:
        """True if the grid does."""
        return 0 <= worker[0] < self.pipelines and 0 <= worker[1] < self.stages

    def add(self, bundle: Bundle, made_for: Fitted | None = None) -> int:
        """Its number. One that was made for certain workers is used while it is the one that is `fitted`.

        A bundle of another grid goes into the book for that, which is made if need be.
        """
        if not self.is_of(bundle):
            if (book := next((book for book in self.family if book.is_of(bundle)), None)) is None:
                return PlanBook(bundle, self.family)._numbers[0]
            return book.add(bundle, made_for)
        self.bundles.append(bundle)
        number = len(self.bundles) - 1
        self._numbers.append(number)
        age = -self._jobs.setdefault(bundle.job_text, len(self._jobs))
        if made_for is not None:
            self._made_for[number] = made_for
            return number
        for plan, entry in enumerate(bundle.plans):
            self._planned[number, plan] = Planned(_counts(entry.failed, self.stages), entry.period, age)
        return number

    def leave_out(self) -> None:
        """One that is not there any more: its number is nobody else's, and none of its plans is used."""
        self.bundles.append(self.bundles[0])

    def is_of(self, bundle: Bundle) -> bool:
        """True if its plans are for this grid."""
        return grid_shape(bundle) == self._grid

    def layout(self, workers: Sequence[int]) -> str:
        """So many workers on each stage, in words: `8x4,7x5`, or `8x2,7x2@24+15x1@8` for groups."""
        return _layout(self.first, workers, self.split)

    def alone(self, stages: Collection[int]) -> "tuple[PlanBook, int] | None":
        """The book under which one of the groups goes on without the others, and its first stage here.

        `stages` are those with live workers. None if no group has all of its stages, or there is no plan.
        """
        for group in self.groups:
            own = range(group[0], group[-1] + 1)
            if not set(own) <= set(stages):
                continue
            wanted = self.ranges[own.start : own.stop]
            alike = [
                book
                for book in self.family
                if not book.groups and book.ranges == wanted and book.units == self.units
            ]
            planned = workers_of(self.first)[own.start : own.stop]
            if alike:
                # Others of the same cut may have plans for more workers only.
                fitting = (book for book in alike if any(counts == planned for counts, _ in book.layouts()))
                return next(fitting, alike[0]), own.start
        return None

    def slow_in(self, assignment: Assignment) -> dict[Worker, float]:
        """Those who have less to do in it."""
        made_for = self._made_for.get(assignment.bundle)
        return {} if made_for is None else made_for.slow

    def counts(self, live: Collection[Worker]) -> Counts:
        """Failures on each stage."""
        return failed_counts(live, self.stages, self.pipelines)

    def assign(self, live: Collection[Worker]) -> Assignment | None:
        """The quickest plan that these workers can run; None if none has few enough of them.

        Of plans for exactly these failures one with newer op times is better.
        """
        if self.fitted is not None and self._made_for[self.fitted].live == frozenset(live):
            bundle = self.bundles[self.fitted]
            # The first of a stage has the first role, as it had when the plan was asked for.
            roles = dict(zip(sorted(live, key=_by_stage), bundle.workers(0), strict=True))
            return Assignment(self.fitted, 0, roles, 0, bundle.plans[0].period)
        working = [worker for worker in live if worker not in self.standby]
        if len(working) < len(live):
            chosen = self._choose(self.counts(working))
            if chosen is not None and self._planned[chosen].counts == self.counts(working):
                return self._assign(*chosen, live)._replace(on_purpose=True)
        chosen = self._choose(self.counts(live))
        return None if chosen is None else self._assign(*chosen, live)

    def planned_period(self, assignment: Assignment) -> int | None:
        """Ticks of its plan, or of the quickest for the same failures, with the op times that the job was
        compiled with; None if there is no such plan."""
        if self.bundles[assignment.bundle].job_text == self.first.job_text:
            return assignment.period
        failed = self.counts(assignment.roles)
        return min((plan.period for plan in self._as_compiled() if plan.counts == failed), default=None)

    def idle_roles(self, assignment: Assignment, places: Collection[Worker]) -> dict[Worker, Worker]:
        """Roles without work for further workers, none of them taken."""
        taken = set(assignment.roles.values())
        roles: dict[Worker, Worker] = {}
        for place in sorted(places):
            free = [(p, place[1]) for p in range(self.pipelines) if (p, place[1]) not in taken]
            planned = set(self.bundles[assignment.bundle].workers(assignment.plan))
            roles[place] = next(role for role in free if role not in planned)
            taken.add(roles[place])
        return roles

    def best_placement(self, failures: int) -> Planned | None:
        """Best placement of so many failures, and its period: by the first bundle, or a plan made since."""
        in_first = (plan for (number, _), plan in self._planned.items() if number == self._numbers[0])
        return quickest_placement(in_first, failures) or quickest_placement(self._as_compiled(), failures)

    def layouts(self) -> Iterator[tuple[Counts, int]]:
        """Workers on each stage of every plan for this grid with the job's own op times, and its period."""
        for failed, period, _ in self._as_compiled():
            yield tuple(self.pipelines - count for count in failed), period

    def _as_compiled(self) -> Iterator[Planned]:
        """Plans with the op times of the job as it was compiled."""
        return (plan for plan in self._planned.values() if plan.age == 0)

    def is_planned(self, failures: int) -> bool:
        """True if the first bundle says where so many failures lie best."""
        return any(len(entry.failed) == failures for entry in self.first.plans)

    def _choose(self, failed: Counts) -> tuple[int, int] | None:
        """The numbers of a bundle and of a plan in it."""
        found = quickest_fit(self._planned.values(), failed)
        return None if found is None else list(self._planned)[found]

    def _assign(self, number: int, plan: int, live: Collection[Worker]) -> Assignment:
        planned = self.bundles[number].workers(plan)
        roles: dict[Worker, Worker] = {}
        standbys = 0
        for stage in range(self.stages):
            here = sorted((place in self.standby, place) for place in live if place[1] == stage)
            working = [role for role in planned if role[1] == stage]
            idle = [(p, stage) for p in range(self.pipelines) if (p, stage) not in working]
            standbys += max(0, len(here) - len(working))
            roles.update(zip((place for _, place in here), [*working, *idle], strict=False))
        return Assignment(number, plan, roles, standbys, self.bundles[number].plans[plan].period)


def plan_name(book: PlanBook, assignment: Assignment) -> str:
    """Failures on each stage as the plan has them, such as `0 1 0 0`; under another cut its layout, such as
    `6x3,2x2` or `6x3,2x2 in halves`."""
    failed = _counts(book.bundles[assignment.bundle].plans[assignment.plan].failed, book.stages)
    if book.is_own:
        return " ".join(map(str, failed))
    return book.layout([book.pipelines - count for count in failed])


def layout_of_plan(bundle: Bundle, plan: int, split: int = 1) -> str:
    """Layers and workers of each stage of a plan of a job in layers, as `PlanBook.layout` has them."""
    failed = _counts(bundle.plans[plan].failed, bundle.stages)
    return _layout(bundle, [bundle.pipelines - count for count in failed], split)


def _layout(bundle: Bundle, workers: Sequence[int], split: int) -> str:
    if not bundle.groups:
        return layout_text(bundle.cut, workers, split)
    counted = zip(layers_of_stages(bundle), workers, strict=True)
    stages = [f"{past - first}x{count}" for (first, past), count in counted]
    groups = [",".join(stages[group[0] : group[-1] + 1]) for group in bundle.groups]
    return "+".join(
        f"{group}@{share}" for group, share in zip(groups, bundle.job_line("shares"), strict=True)
    )


def grid_shape(bundle: Bundle) -> tuple[object, ...]:
    """The same for bundles whose plans are for the same cells, with the same work in all."""
    units = bundle.pipelines * bundle.microbatches
    return bundle.cut, bundle.pipelines, bundle.groups, units, bundle.job_line("shares")


def layers_of_stages(bundle: Bundle) -> tuple[LayerRange, ...]:
    """None when the job is not in layers."""
    if not bundle.cut:
        return ()
    chunks = stage_ranges(bundle.cut)
    held = (bundle.held(stage) for stage in range(bundle.stages))
    return tuple((chunks[numbers[0]][0], chunks[numbers[-1]][1]) for numbers in held)


def stream_of(bundle: Bundle, plan: int, role: Worker) -> Sequence[Instruction]:
    """Stream of a role; one that the plan counts as failed runs only the operations its peers do together."""
    workers = bundle.workers(plan)
    if role in workers:
        return bundle.stream(plan, role)
    peer = next(worker for worker in workers if worker[1] == role[1])
    shared = _OF_ROUNDS if bundle.slots else _WITHOUT_MICROBATCHES
    steps = map(without_microbatch, bundle.stream(plan, peer))
    return tuple(step for step in steps if step.opcode in shared)


def without_microbatch(step: Instruction) -> Instruction:
    """Of an instruction that peers run together, the part of one who has no micro-batch."""
    served = _SERVED.get(step.opcode)
    return step if served is None else Instruction(served, step.chunk, buffer=step.buffer)


def workers_of(bundle: Bundle) -> Counts:
    """On each stage, in its first plan."""
    failed = _counts(bundle.plans[0].failed, bundle.stages)
    return tuple(bundle.pipelines - count for count in failed)


def _by_stage(worker: Worker) -> tuple[int, int]:
    return worker[1], worker[0]


def _counts(failed: Collection[Worker], stages: int) -> Counts:
    return tuple(sum(stage == other for _, stage in failed) for other in range(stages))


def one_of_each_stage(places: Collection[Worker], turn: int) -> set[Worker]:
    """In turn: injected faults spare them, so that every stage keeps its state."""
    stages: dict[int, list[Worker]] = {}
    for place in sorted(places):
        stages.setdefault(place[1], []).append(place)
    return {here[turn % len(here)] for here in stages.values()}
