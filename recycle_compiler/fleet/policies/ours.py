"""Ours: the bundle's plans, plans on demand, moves and re-joins, as the runtime does them.

After a failure every worker stops, regroups and restarts the step, with the best plan that is there for
the failures as they are. A better one may come a little later from planning on demand; and workers move to
other stages where the runtime's own rule says that this pays. Whoever comes back copies its state while the
others train; that costs two regroupings. If no worker is left on a stage the job starts again from copies in
neighbours' memory, if it makes them, or from a checkpoint, with every worker where it serves best. So it does
where the optimizer's state is sharded and as many workers of a stage fail as own each shard, one before new
owners have what the other one owned: that they owned the same shard is assumed.

A job in layers whose bundle has plans under other cuts moves layers instead of workers, to whichever cut and
number of workers on each stage is fastest, if that pays. Layers travel while training goes on; then all
switch between two steps, and who has no place in the plan rejoins. A failure or a return in between makes
the move come to nothing, and none begins while a worker copies its state. Where more workers are gone than
the bundle was made for, the fastest cut for those that are left is made on demand. Groups of pipelines are
cuts like others; when a stage of one group has no worker left, another group goes on alone at once, and who
is not in it rejoins.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from recycle_compiler.fleet.our_plans import STANDS_STILL, CutsOnDemand, OurCut, alone, our_cuts
from recycle_compiler.fleet.policies.bookkeeping import CopiesInMemory, WorkClock, own_stages_first
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.ir.units import plural
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.moves import (
    STEPS_BEFORE_FURTHER_MOVES,
    STEPS_BEFORE_MOVES,
    ChangeRate,
    CostOfMoves,
    Counts,
    Moves,
    least_moves,
    moves_text,
)
from recycle_runtime.plan.plan_choice import Planned
from recycle_runtime.plan.recut import NOTHING, best_layout, least_bytes_to

_STEPS_LEFT = 1 << 40
_NEVER = float("inf")
_CUT_SEARCH = 6
"""A cut on demand takes as long as so many plans: 7 s of CPU on 2,048 GPUs in 96 layers."""


class _Moving(NamedTuple):
    """Layers are on their way to another cut."""

    arrive: float
    """Time at which the last layers arrive."""
    cut: OurCut
    stages: dict[Worker, int]
    """The new stage of each machine that has a place in it."""
    period: int
    layout: str


class Ours:
    """Machines are named by their places in the fleet; which stage each of them serves is decided here."""

    name = "ours"

    def __init__(self, setting: FleetSetting) -> None:
        costs, job = setting.costs, setting.job
        most = max((sum(plan.counts) for plan in setting.plans), default=0)
        planned = f"for up to {plural(most, 'failure')}" if most else "without failures"
        self.note = (
            f"plans of the bundle {planned}, others on demand; a failure takes "
            f"{costs.detection + costs.regroup:.3g} s ({costs.origin('detection', 'regroup')}) and "
            f"{costs.undone:g} iterations"
        )
        if setting.neighbour_copies:
            self.note += f"; copies in neighbours' memory every {plural(setting.neighbour_copies, 'step')}"
        if job.owners:
            self.note += f"; {plural(job.owners, 'owner')} of each shard, without which all goes back"
        if setting.recuts:
            self.note += f"; {plural(len(setting.recuts), 'other cut')} where layers that travel pay"
        self._setting, self._costs, self._job = setting, costs, job
        self._cuts = our_cuts(setting)
        self._cut = self._cuts[0]
        """That of now."""
        self._on_demand = CutsOnDemand(setting)
        self._moving: _Moving | None = None
        self._benched: set[Worker] = set()
        """Live workers that find no cell left in the grid of the cut."""
        self._period = _NEVER
        self._serves: dict[Worker, int] = {}
        """The stage of each machine that has work."""
        self._counted: Counts | None = None
        """Failures on each stage; None when they have to be counted again."""
        self._standby: dict[Worker, int] = {}
        """The stage of each machine that is being sent its state."""
        self._idle: set[Worker] = set()
        """Live workers while the job stands still."""
        self._arrived: set[Worker] = set()
        """Workers that have started and are let in once a failure has been dealt with."""
        self._copied: list[tuple[float, Worker]] = []
        """Time at which each standby will have its state."""
        self._owners_gone: list[tuple[float, int]] = []
        """Time at which an owner of shards failed, and its stage; until new ones have its state."""
        self._plan_ready = self._weigh_at = _NEVER
        self._clock = WorkClock(setting.free_checkpoints_every)
        self._copies = CopiesInMemory(setting.neighbour_copies, setting.copy_travel)
        self.saving = setting.copying
        self._last_change = 0.0
        self._changes = ChangeRate(costs.expected_change)
        self._changes.begin(0.0)
        self._cost_of_moves = CostOfMoves()
        self._cost_of_moves.regrouped(costs.regroup, 0.0)
        self._cost_of_moves.copied(round(costs.copy_rate), 1.0)
        self._cost_of_moves.state_bytes = {stage: self._cut.state_bytes(stage) for stage in range(job.stages)}

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        grid = ((p, s) for p in range(self._job.pipelines) for s in range(self._job.stages))
        self._idle = {machine for machine in grid if machine not in down}
        self._place(self._idle)
        self._regroup(0.0)
        self._expect_moves()
        return self._rate

    def react(self, change: Change) -> Reaction:
        at = change.at
        self._clock.pass_to(at, self._rate)
        is_member = change.failed & (self._serves.keys() | self._standby.keys())
        taken_over = self._taken_over(change)
        lost = self._shards_lost(at, change.failed - taken_over.keys())
        self._forget(change.failed)
        self._serves.update(taken_over)
        if not self._serves and not is_member:
            self._idle = (self._idle - change.failed) | change.returned
            return self._start_again("workers are back")
        self._arrived |= change.returned - taken_over.keys()
        if is_member:
            self._changes.change()
            ahead = self._is_planned_ahead(at, change.failed)
            self._last_change = at
            if lost is not None:
                return self._give_up(change.failed, f"all owners of a shard of stage {lost} may be gone")
            if max(self._counts) < self._cut.job.pipelines:
                return self._recover(change.failed, ahead)
            return self._go_on_alone(change.failed) or self._give_up(change.failed, self._stages_gone)
        return self._let_in() if change.returned else Reaction(self._rate)

    def due(self) -> float | None:
        moment = min(
            max(self._clock.now, self._clock.busy_until) if self._arrived else _NEVER,
            self._copied[0][0] if self._copied else _NEVER,
            self._plan_ready,
            self._weigh_at,
            _NEVER if self._moving is None else self._moving.arrive,
        )
        return None if moment == _NEVER else moment

    def act(self, at: float) -> Reaction:
        self._clock.pass_to(at, self._rate)
        if self._arrived:
            return self._let_in()
        if self._copied and self._copied[0][0] <= at:
            return self._give_work(at)
        if self._plan_ready <= at:
            self._plan_ready = _NEVER
            return self._take_up("a plan for exactly these failures is ready")
        if self._moving is not None and self._moving.arrive <= at:
            return self._switch(self._moving)
        self._weigh_at = _NEVER
        return self._consider_moves(at) if len(self._cuts) == 1 else self._consider_recut(at)

    # After a change.

    def _forget(self, failed: frozenset[Worker]) -> None:
        self._counted = None
        self._copies.failed(self._clock, failed)
        for machine in failed:
            self._serves.pop(machine, None)
            self._standby.pop(machine, None)
        self._arrived -= failed
        self._benched -= failed
        self._copied = [entry for entry in self._copied if entry[1] not in failed]
        heapq.heapify(self._copied)
        if failed and self._moving is not None:
            # Also where one fails that had no work yet: what is better is weighed anew.
            self._moving = None
            self._expect_moves()

    def _taken_over(self, change: Change) -> dict[Worker, int]:
        """Places of failed workers that spare machines with all state fill at once, and their stages."""
        if not self._setting.spares_have_state:
            return {}
        there = change.failed & change.from_spares & self._serves.keys()
        return {machine: self._serves[machine] for machine in there}

    def _shards_lost(self, at: float, failed: Collection[Worker]) -> int | None:
        """A stage on which as many workers as own a shard are gone before there were new owners."""
        if not self._job.owners:
            return None
        since = at - self._costs.regroup - self._setting.copy_travel
        self._owners_gone = [entry for entry in self._owners_gone if entry[0] >= since]
        self._owners_gone += [(at, self._serves[machine]) for machine in failed if machine in self._serves]
        gone = Counter(stage for _, stage in self._owners_gone)
        return min((stage for stage, count in gone.items() if count >= self._job.owners), default=None)

    def _is_planned_ahead(self, at: float, failed: frozenset[Worker]) -> bool:
        """The next failure on every stage is planned for in the background, one stage after the other."""
        return len(failed) == 1 and at - self._last_change >= self._costs.planning * self._cut.job.stages

    def _recover(self, failed: frozenset[Worker], ahead: bool) -> Reaction:
        """Go on with a plan for the failures as they are."""
        redone = 0.0
        if self._rate > 0:
            redone = min(self._costs.undone * self._setting.seconds(self._period), self._clock.since_pause)
        pause = self._costs.detection + self._costs.regroup
        counts, words = self._counts, "the plan for these failures"
        quick = self._cut.periods.at_once(counts)
        self._plan_ready = _NEVER
        if self._cut.periods.in_bundle(counts) or ahead:
            self._period = self._cut.periods.exact(counts)
        elif quick is not None:
            self._period, words = quick, "a plan for more failures, until there is one for these"
            self._plan_ready = self._clock.now + pause + self._costs.planning
        else:
            self._period, words = self._cut.periods.exact(counts), "waits for a plan for these failures"
            pause += self._costs.planning
        if self._period == STANDS_STILL:
            words, moving = self._make_room_for_experts()
            pause = self._costs.detection + self._costs.regroup + moving
        self._regroup(pause)
        self._clock.worked -= redone
        self._expect_moves()
        return Reaction(self._rate, pause, redone, f"{_names(failed)} failed: {words}")

    def _make_room_for_experts(self) -> tuple[str, float]:
        """Workers of other stages move to one with too few slots, where that is enough; else the job waits.
        Seconds that moves take."""
        best = self._cut.periods.best(self._counts)
        if self._cut is not self._cuts[0] or best.period == STANDS_STILL:
            return "too few slots for experts, stands still", 0.0
        moved, pause = self._move_to(best)
        return f"{plural(moved, 'worker')} moved to a stage with too few slots", pause

    def _move_to(self, best: Planned) -> tuple[int, float]:
        """Have failures lie as in this plan; how many workers move, and the seconds that takes."""
        moves = self._moves_to(best)
        for (_, source), (_, target) in moves.items():
            mover = min(machine for machine, stage in self._serves.items() if stage == source)
            self._serves[mover] = target
        self._counted = None
        self._period = best.period
        return len(moves), self._cost_of_moves.of(moves)

    def _moves_to(self, best: Planned) -> Moves:
        pipelines = self._job.pipelines
        places = [
            (number, stage) for stage, gone in enumerate(self._counts) for number in range(pipelines - gone)
        ]
        return least_moves(places, best.counts, pipelines)

    def _go_on_alone(self, failed: frozenset[Worker]) -> Reaction | None:
        """Go on with another group where a stage of a group has no worker; None if there is no such group."""
        job = self._cut.job
        found = alone(self._cuts, self._cut, tuple(job.pipelines - gone for gone in self._counts))
        if found is None:
            return None
        self._cut, first = found
        stages = {machine: stage - first for machine, stage in self._serves.items()}
        rest = {*self._serves, *self._standby, *self._benched}
        self._serves = {
            machine: stage for machine, stage in stages.items() if 0 <= stage < self._cut.job.stages
        }
        self._standby, self._copied, self._benched, self._counted = {}, [], set(), None
        reaction = self._recover(failed, ahead=False)
        self._stand_by(rest - self._serves.keys())
        return reaction._replace(why=f"{reaction.why}; a group of pipelines goes on alone")

    @property
    def _stages_gone(self) -> str:
        gone = (stage for stage, count in enumerate(self._counts) if count >= self._cut.job.pipelines)
        return f"no live worker has stage {', '.join(map(str, gone))}"

    def _give_up(self, failed: frozenset[Worker], lost: str) -> Reaction:
        """No live worker holds some of the state."""
        why = f"{_names(failed)} failed: {lost}"
        if self._cut is not self._cuts[0]:
            planned, _ = next(self._cut.layouts())
            why += f" of {self._cut.text(planned)}"
        self._idle = {*self._serves, *self._standby, *self._arrived, *self._benched}
        self._standby, self._arrived, self._copied, self._benched = {}, set(), [], set()
        age = self._copies.age(self._clock)
        reaction = self._start_again(why, age)
        if not self._serves:
            # Until workers are back nodes may have gone.
            age = None
        self._copies.go_back(self._clock, age)
        return reaction._replace(redone=self._clock.back_to_checkpoint() if age is None else age)

    def _start_again(self, why: str, copy_age: float | None = None) -> Reaction:
        """From a copy in memory or a checkpoint, if there is a worker for every stage."""
        self._plan_ready = self._weigh_at = _NEVER
        self._place(self._idle)
        if not self._serves:
            return Reaction(0.0, why=f"{why}: too few workers for every stage, stands still")
        self._idle = set()
        pause, source = self._setting.from_checkpoint, "a checkpoint"
        if copy_age is not None:
            pause += self._setting.copy_travel - self._setting.checkpoint_load
            source = "copies in memory"
        self._regroup(pause)
        self._expect_moves()
        return Reaction(self._rate, pause, why=f"{why}: starts from {source}")

    # Of its own accord.

    def _let_in(self) -> Reaction:
        """Make started workers standbys while they get their state; layers on their way then go nowhere."""
        arrived, self._arrived = self._arrived, set()
        if self._neediest(min(arrived)[1]) is None:
            # The cut has no cell for them; another may.
            self._benched |= arrived
            self._expect_moves()
            return Reaction(self._rate, why=f"{_names(arrived)} in, no cell is free")
        self._moving = None
        reaction = self._pause(self._costs.regroup, f"{_names(arrived)} in, copying")
        self._stand_by(arrived)
        return reaction

    def _stand_by(self, machines: Collection[Worker]) -> None:
        """Each copies the state of a stage from when all go on; one for which there is no cell waits."""
        for machine in sorted(machines):
            stage = self._neediest(machine[1])
            if stage is None:
                self._benched.add(machine)
                continue
            self._standby[machine] = stage
            copy = self._cut.state_bytes(stage) / self._costs.copy_rate
            heapq.heappush(self._copied, (self._clock.busy_until + copy, machine))

    def _give_work(self, at: float) -> Reaction:
        joined: list[Worker] = []
        self._counted = None
        while self._copied and self._copied[0][0] <= at:
            machine = heapq.heappop(self._copied)[1]
            self._serves[machine] = self._standby.pop(machine)
            joined.append(machine)
        self._moving = None
        self._changes.change()
        self._last_change = at
        return self._take_up(f"{_names(joined)} at work")

    def _take_up(self, why: str) -> Reaction:
        """Between two steps."""
        self._period = self._cut.periods.exact(self._counts)
        self._plan_ready = _NEVER
        reaction = self._pause(self._costs.regroup, why)
        self._expect_moves()
        return reaction

    def _consider_moves(self, at: float) -> Reaction:
        failed = self._counts
        best = self._cut.periods.best(failed)
        if best.counts == failed:
            return Reaction(self._rate)
        moves = self._moves_to(best)
        saving, pause = 1 - best.period / round(self._period), self._cost_of_moves.of(moves)
        if not JobChange(moves_text(moves), "moved", self._outlook(at), saving, pause).pays:
            return Reaction(self._rate)
        moved, pause = self._move_to(best)
        return self._pause(pause, f"{plural(moved, 'worker')} moved to other stages")

    # Layers on their way to another cut.

    def _consider_recut(self, at: float) -> Reaction:
        """The fastest of other layouts; among equals, the one that moves fewest bytes."""
        if self._standby or self._moving is not None:
            return Reaction(self._rate)
        costs = self._job.layer_costs
        assert costs is not None, "only a job in layers has other cuts"
        live = len(self._serves) + len(self._benched)
        layouts = [
            (period, cut.text(workers), (cut, workers))
            for cut in self._known_cuts(live)
            for workers, period in cut.layouts()
            if sum(workers) <= live and period < self._period
        ]
        held = {machine: self._cut.ranges[stage] for machine, stage in self._serves.items()}
        held.update(dict.fromkeys(self._benched, NOTHING))
        found = best_layout(
            layouts,
            self._period,
            lambda to: least_bytes_to(held, to[0].ranges, to[1], costs.parameters),
        )
        if found is None:
            return Reaction(self._rate)
        period, layout, (cut, _), recut = found
        saving, moving = 1 - period / self._period, recut.seconds(self._costs.copy_rate)
        pause = self._costs.regroup
        if not JobChange(f"layout {layout}", "re-cut", self._outlook(at), saving, pause, moving).pays:
            return Reaction(self._rate)
        self._moving = _Moving(at + moving, cut, recut.stages, period, layout)
        return Reaction(self._rate, why=f"layers travel to {layout}")

    def _outlook(self, at: float) -> Outlook:
        return Outlook(self._setting.seconds(self._period), self._changes.seconds(at), _STEPS_LEFT)

    def _known_cuts(self, live: int) -> Sequence[OurCut]:
        """Those of the bundle, and the one that was made for so few workers."""
        made = self._on_demand.cut(live) if self._on_demand.is_beyond(live) else None
        return self._cuts if made is None else (*self._cuts, made)

    def _switch(self, moving: "_Moving") -> Reaction:
        """Between two steps; what those hold that the plan has no place for is of no use there."""
        rest = (self._serves.keys() | self._benched) - moving.stages.keys()
        self._cut, self._serves, self._period = moving.cut, dict(moving.stages), moving.period
        self._counted, self._moving, self._plan_ready = None, None, _NEVER
        self._benched, self._owners_gone = set(), []
        reaction = self._pause(self._costs.regroup, f"cut to {moving.layout}")
        self._stand_by(rest)
        self._expect_moves()
        return reaction

    # What is known.

    @property
    def _rate(self) -> float:
        return 0.0 if self._period == _NEVER else self._setting.rate(self._period) * (1 - self.saving)

    @property
    def _counts(self) -> Counts:
        """Failures on each stage."""
        if self._counted is None:
            there = Counter(self._serves.values())
            job = self._cut.job
            self._counted = tuple(job.pipelines - there[stage] for stage in range(job.stages))
        return self._counted

    def _neediest(self, own: int) -> int | None:
        """The stage that lacks most workers, those on their way counted; its own one among equals."""
        left = list(self._counts)
        for stage in self._standby.values():
            left[stage] -= 1
        if self._cut is not self._cuts[0]:
            return self._slowest_stage(left)
        return max(range(len(left)), key=lambda stage: (left[stage], stage == own, -stage))

    def _slowest_stage(self, failed: Sequence[int]) -> int | None:
        """Under another cut stages need unlike numbers of workers: the one with most to do gets the next.

        None where the grid of the cut has no cell left.
        """
        job, loads = self._cut.job, self._cut.loads
        most = job.pipelines - 1
        ticks = {
            stage: loads.ticks(stage, min(failed[stage], most))
            for stage in range(job.stages)
            if failed[stage] > 0
        }
        return max(ticks, key=lambda stage: (ticks[stage], -stage), default=None)

    def _place(self, machines: Collection[Worker]) -> None:
        """Every worker where the bundle's plan for so many failures wants it; none has a state to keep."""
        self._cut, self._moving, self._owners_gone = self._cuts[0], None, []
        self._serves, self._counted, self._period = {}, None, _NEVER
        if self._job.workers - len(machines) > self._job.stages * (self._job.pipelines - 1):
            self._place_otherwise(machines)
            return
        counts = [self._job.pipelines] * self._job.stages
        for _, stage in machines:
            counts[stage] -= 1
        best = self._cut.periods.best(tuple(counts))
        own = {machine: machine[1] for machine in machines}
        self._serves = own_stages_first(own, (), [self._job.pipelines - gone for gone in best.counts])
        self._period = best.period

    def _place_otherwise(self, machines: Collection[Worker]) -> None:
        """Too few for the stages of the job's own cut: under the fastest cut that they are enough for."""
        found = [
            (period, number, workers)
            for number, cut in enumerate(self._cuts)
            for workers, period in cut.layouts()
            # No job begins with groups of pipelines.
            if sum(workers) <= len(machines) and not cut.job.groups
        ]
        if not found:
            return
        self._period, number, workers = min(found)
        self._cut = self._cuts[number]
        places = (stage for stage, count in enumerate(workers) for _ in range(count))
        self._serves = dict(zip(sorted(machines), places, strict=False))

    def _expect_moves(self) -> None:
        begins = max(self._clock.now, self._clock.busy_until)
        self._weigh_at = _NEVER
        if self._rate > 0 and (any(self._counts) or len(self._cuts) > 1):
            wait = self._steps_before_moves * self._setting.seconds(self._period)
            if len(self._cuts) == 1 and not self._cut.periods.is_planned(sum(self._counts)):
                # The next failure on every stage is planned for first.
                wait = max(wait, (self._job.stages + 1) * self._costs.planning)
            if self._on_demand.is_beyond(len(self._serves) + len(self._benched)):
                wait = max(wait, (self._cut.job.stages + _CUT_SEARCH) * self._costs.planning)
            self._weigh_at = begins + wait

    @property
    def _steps_before_moves(self) -> int:
        """Few once steps of the job have been timed; it has made some if it ran for so long."""
        timed = self._clock.worked >= STEPS_BEFORE_MOVES * self._setting.seconds(self._period)
        return STEPS_BEFORE_FURTHER_MOVES if timed else STEPS_BEFORE_MOVES

    def _regroup(self, seconds: float) -> None:
        """A generation begins after a pause."""
        self._clock.pause(seconds)
        self._copies.generation(self._clock, self._setting.seconds(self._period), self._serves)

    def _pause(self, seconds: float, why: str) -> Reaction:
        self._regroup(seconds)
        return Reaction(self._rate, seconds, 0.0, why)


def _names(workers: Iterable[Worker]) -> str:
    """`0:2, 1:3`, and how many more."""
    names = [f"{pipeline}:{stage}" for pipeline, stage in sorted(workers)]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
