"""A worker that is killed before any instruction of its stream, and comes back: nothing changes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch

from recycle_runtime.experts.exchange import Alone as OneProcess
from recycle_runtime.experts.placement import Placement
from recycle_runtime.experts.shared import SharedExperts
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.recovery.watched import BUFFERS_AND_DROPOUT, TINY, check, disturbed, run
from tests.runtime.training.alone import Alone, train_alone
from tests.runtime.training.compare import MLP, changed

SHARED_EXPERTS = str(Path(__file__).resolve().parents[1] / "training" / "programs" / "shared_experts.py")
STEPS_PER_LIFE = 25
"""About as many as are made while a worker starts again; a run that ends too early is followed by another."""
MOST_RUNS = 4
MIXTURES = 2
"""Of each stage of that program."""


Reference = Callable[[Bundle, str, Sequence[StepRow]], Alone]
"""The same training on one process: of a plan and a program, and of the steps that were made."""


def alone_with_all_tokens(plan: Bundle, program: str, rows: Sequence[StepRow]) -> Alone:
    return train_alone(program, plan.stages, plan.pipelines * plan.microbatches, len(rows))


def kill_everywhere(
    folder: Path,
    bundle: str,
    program: str,
    place: Worker,
    every: int = 1,
    kind: str = "kill",
    first: int = 0,
    undo: Literal["device", "host"] = "device",
    reference: Reference = alone_with_all_tokens,
) -> None:
    """At each position from the first on once; as many lives in a run as there is time for."""
    plan = Bundle.read(bundle)
    left = list(range(first, len(plan.stream(0, place)), every))
    for attempt in range(MOST_RUNS):
        steps = STEPS_PER_LIFE * (len(left) + 1)
        name = f"{place[0]}:{place[1]}"
        faults = [f"{kind}={name}@{2 + 3 * number}.{at}" for number, at in enumerate(left)]
        returns = [f"{name}@{3 + 3 * number}" for number, _ in enumerate(left)]
        here = folder / f"run-{attempt}"
        outcome = run(here, bundle, program, steps, faults, returns, undo=undo)
        happened = {position for _, _, position in outcome.faults}
        assert happened, "nothing has happened"
        assert len(outcome.rows) == steps, outcome.error
        check(here, outcome, reference(plan, program, outcome.rows))
        left = [at for at in left if at not in happened]
        if not left:
            return
    pytest.fail(f"{len(left)} positions are left after {MOST_RUNS} runs")


PLACES = [(0, 0), (1, 1)]


def test_some_instructions(tmp_path: Path, square: str) -> None:
    kill_everywhere(tmp_path, square, TINY, (1, 1), every=4)


@pytest.mark.slow
def test_some_instructions_with_undo_that_is_copied_ahead(tmp_path: Path, square: str) -> None:
    kill_everywhere(tmp_path, square, TINY, (1, 1), every=4, undo="host")


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_each_instruction(tmp_path: Path, square: str, place: Worker) -> None:
    kill_everywhere(tmp_path, square, TINY, place)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_each_instruction_with_barriers(tmp_path: Path, square_with_barrier: str, place: Worker) -> None:
    kill_everywhere(tmp_path, square_with_barrier, TINY, place)


def test_some_instructions_with_shards(tmp_path: Path, sharded: str) -> None:
    """From the sum of gradients on: some owners have stepped, some peers have the weights."""
    stream = Bundle.read(sharded).stream(0, (1, 1))
    first = next(at for at, each in enumerate(stream) if each.opcode is Opcode.OPTIMIZER)
    kill_everywhere(tmp_path, sharded, MLP, (1, 1), first=first)


def test_some_instructions_with_experts(tmp_path: Path, experts: str) -> None:
    """In the middle of exchanges, between them, and while weights go to other slots."""
    kill_everywhere(tmp_path, experts, SHARED_EXPERTS, (1, 1), every=14)


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0, 0), (1, 1)])
@pytest.mark.parametrize("clip", ["", "CLIP_NORM = 0.4"])
def test_each_instruction_with_experts(tmp_path: Path, experts: str, place: Worker, clip: str) -> None:
    program = changed(tmp_path, SHARED_EXPERTS, clip) if clip else SHARED_EXPERTS
    kill_everywhere(tmp_path, experts, program, place)


def test_some_instructions_with_experts_that_drop_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experts: str
) -> None:
    drop_everywhere(tmp_path, monkeypatch, experts, (1, 1), every=14)


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0, 0), (1, 1)])
def test_each_instruction_with_experts_that_drop_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experts: str, place: Worker
) -> None:
    drop_everywhere(tmp_path, monkeypatch, experts, place)


TELLING = """
import json
import time

from recycle_runtime.state.ownership import Ownership

_gather = Ownership.gather


def _told(ownership):
    chunk = ownership.chunk
    places = [each.exchange.placement.peers for layer in chunk.layers for each in layer.experts.layers]
    with open({path!r}, "a", encoding="utf-8") as file:
        file.write(json.dumps([time.monotonic_ns(), chunk.number, chunk.applied, places]) + "\\n")
    _gather(ownership)


Ownership.gather = _told
"""
"""When a generation begins and after a step, a worker writes down where the experts of the next one are."""


def drop_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bundle: str, place: Worker, every: int = 1
) -> None:
    """Fewer workers have fewer slots, so other tokens are dropped: those that one process drops, which is
    told how many slots each expert had in each step."""
    limited, path = changed(folder, SHARED_EXPERTS, "CAPACITY = 1.0"), folder / "places.jsonl"
    (folder / "telling.py").write_text(Path(limited).read_text() + TELLING.format(path=str(path)))

    def alone(plan: Bundle, _: str, rows: Sequence[StepRow]) -> Alone:
        per_step = plan.pipelines * plan.microbatches
        told = sorted(json.loads(line) for line in path.read_text().splitlines())
        path.unlink()
        # A step that was made again was made with what is told last.
        places = {(chunk, step): placements for _, chunk, step, placements in told}
        assert len({len(peers) for placements in places.values() for peers in placements}) > 1
        calls: dict[SharedExperts, int] = {}
        dropped = [0] * len(rows)
        forward = SharedExperts.forward

        def limited_forward(
            self: SharedExperts, tokens: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
        ) -> torch.Tensor:
            step = calls.setdefault(self, 0) // per_step
            stage, number = divmod(list(calls).index(self), MIXTURES)
            self.exchange = OneProcess(Placement(places[stage, step][number]))
            made = forward(self, tokens, chosen, weights)
            calls[self] += 1
            if (counted := self.take_counts()) is not None:
                dropped[step] += int(counted.dropped)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(SharedExperts, "forward", limited_forward)
            found = train_alone.__wrapped__(limited, plan.stages, per_step, len(rows))
        # A worker that is killed when its step is made may not have told its share.
        most = max(row.choices for row in rows)
        assert [row.dropped for row in rows if row.choices == most] == [
            each for row, each in zip(rows, dropped, strict=True) if row.choices == most
        ]
        return found

    kill_everywhere(folder, bundle, str(folder / "telling.py"), place, every, reference=alone)


@pytest.mark.slow
def test_shards_and_undo_that_is_copied_ahead(tmp_path: Path, sharded: str) -> None:
    """Killed before its step and after it; steps that are clipped have been made before that is known."""
    program, stream = changed(tmp_path, MLP, "CLIP_NORM = 0.45"), Bundle.read(sharded).stream(0, (1, 1))
    at = next(at for at, each in enumerate(stream) if each.opcode is Opcode.OPTIMIZER)
    faults, returns = [f"kill=1:1@5.{at}", f"kill=1:1@30.{at + 1}"], ["1:1@6", "1:1@31"]
    outcome = disturbed(tmp_path, sharded, 60, faults, returns, program, undo="host")
    assert len(outcome.faults) == 2


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0, 0), (1, 1)])
def test_each_instruction_with_shards(tmp_path: Path, sharded: str, place: Worker) -> None:
    kill_everywhere(tmp_path, sharded, MLP, place)


@pytest.mark.slow
def test_each_instruction_with_shards_and_barriers(tmp_path: Path, sharded_with_barrier: str) -> None:
    kill_everywhere(tmp_path, sharded_with_barrier, MLP, (1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.05, 0.45])
def test_each_instruction_with_shards_and_steps_made_again(tmp_path: Path, sharded: str, clip: float) -> None:
    kill_everywhere(tmp_path, sharded, changed(tmp_path, MLP, f"CLIP_NORM = {clip}"), (1, 0))


SMALL_BUCKETS = """
from recycle_runtime.execution.optimizer import gradient_part
from recycle_runtime.state import ownership

gradient_part.BUCKET_BYTES = ownership.BUCKET_BYTES = ownership.SENT_APART = 1
"""
"""Every parameter is summed for itself, most of them before REDUCE; weights of every layer travel alone."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sharded", "sharded_with_barrier", "square"])
def test_each_instruction_with_early_sums(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """From the first weight gradient on: some sums are over, some under way; steps are made again as well."""
    bundle = str(request.getfixturevalue(kind))
    program = changed(tmp_path, MLP, f"{SMALL_BUCKETS}\nCLIP_NORM = 0.45")
    stream = Bundle.read(bundle).stream(0, (1, 1))
    works = (Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT)
    first = next(at for at, each in enumerate(stream) if each.opcode in works)
    kill_everywhere(tmp_path, bundle, program, (1, 1), first=first)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.05, 0.45])
def test_each_instruction_with_steps_made_again(tmp_path: Path, square: str, clip: float) -> None:
    """Every step is clipped, or some of them are."""
    program = changed(tmp_path, TINY, f"CLIP_NORM = {clip}")
    kill_everywhere(tmp_path, square, program, (1, 0))


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.5, 3.0])
def test_each_instruction_with_buffers_and_dropout(tmp_path: Path, square: str, clip: float) -> None:
    program = changed(tmp_path, BUFFERS_AND_DROPOUT, f"CLIP_NORM = {clip}")
    kill_everywhere(tmp_path, square, program, (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("place", "every"), [((1, 2), 1), ((0, 0), 5), ((2, 3), 5)])
def test_instructions_of_the_running_example(
    tmp_path: Path, running_example: str, place: Worker, every: int
) -> None:
    kill_everywhere(tmp_path, running_example, MLP, place, every)
