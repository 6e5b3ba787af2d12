"""The chunks of one cut become those of another between two steps, and training goes on as if nothing was.

In one process, with real plans and workers as threads: so many steps under one cut, so many under the next,
compared with a plain loop over the whole model.
"""

import copy
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import (
    Chunk,
    LayersMissingError,
    build_chunks,
    chunks_of,
    convert,
)
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.session import Role, Session
from recycle_runtime.execution.split_backward import Split, WeightWork
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.program.layers import build_layers, layers_of
from recycle_runtime.program.loading import load_program
from recycle_runtime.transport.interface import Grid
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed
from tests.runtime.training.test_batch_norm import BATCH_NORM
from tests.runtime.training.threads import Room, ThreadTransport
from tests.support.chunks import chunked_job
from tests.support.layers import layer_costs

LAYERED = str(Path(__file__).resolve().parent / "programs" / "layered.py")
CPU = torch.device("cpu")
STEPS = 3
"""Under each cut."""

Held = dict[Worker, dict[int, Chunk]]


def bundle_of(
    folder: Path, cut: Sequence[int], stages: Sequence[int], pipelines: int, microbatches: int
) -> Bundle:
    """A plan for a model cut this way, each chunk on its stage."""
    job = replace(chunked_job(tuple(stages), pipelines, microbatches), cut=tuple(cut))
    path = folder / f"{'-'.join(map(str, cut))}.plan"
    write_bundle(path, source="", plans=[plan_failed(job, failure_set([]))])
    return Bundle.read(path)


def run(bundle: Bundle, held: Held, first: int, last: int) -> list[float]:
    """Steps first .. last - 1 with these chunks; their losses."""
    room, store, shares = Room(), dist.HashStore(), list[tuple[int, float]]()
    grid = Grid(bundle.workers(0), 1, bundle.pipelines, bundle.chunk_stages, bundle.tied_chunks)
    errors: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            role = Role(bundle, 0, worker, bundle.stream(0, worker), grid)
            session = Session(role, held[worker], ThreadTransport(room, grid, worker), store, CPU)
            for step in range(first, last):
                loss = session.run(step).loss
                shares.append((step, loss or 0.0))
            session.settle()
        except BaseException as error:
            errors.append(error)

    with one_at_a_time():
        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in grid.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "some workers hang"
    return [sum(share for at, share in shares if at == step) for step in range(first, last)]


@contextmanager
def one_at_a_time() -> Generator[None]:
    """Threads share the generators of torch, which data, forwards and what is computed again draw from."""
    lock, patch = threading.RLock(), pytest.MonkeyPatch()

    def locked(function: Callable[..., Any]) -> Callable[..., Any]:
        def alone(*arguments: Any) -> Any:
            with lock:
                return function(*arguments)

        return alone

    patch.setattr(Chunk, "forward", locked(Chunk.forward))
    patch.setattr(Split, "backward", locked(Split.backward))
    patch.setattr(WeightWork, "run", locked(WeightWork.run))
    patch.setattr(MicroBatches, "item", locked(MicroBatches.item))
    patch.setattr(MicroBatches, "signature", locked(MicroBatches.signature))
    try:
        yield
    finally:
        patch.undo()


def built(bundle: Bundle, program: str, recoverable: bool = True) -> Held:
    loaded = load_program(program)
    return {
        worker: build_chunks(loaded, bundle, worker[1], 0, CPU, recoverable=recoverable)
        for worker in bundle.workers(0)
    }


def stand(held: Held, step: int) -> None:
    for chunks in held.values():
        for chunk in chunks.values():
            chunk.stand(step, None)


def check(held: Held, program: str, per_step: int, losses: list[float]) -> None:
    """Losses, parameters and buffers are those of one process."""
    alone = train_alone(program, 1, per_step, len(losses))
    assert losses == pytest.approx(alone.losses, rel=1e-12)
    found: dict[str, torch.Tensor] = {}
    for chunks in held.values():
        for chunk in chunks.values():
            found |= chunk.module.state_dict()
    assert found.keys() == alone.states[0].keys()
    for name, tensor in alone.states[0].items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("clip", "cuts"),
    [
        (0.05, [(9,), (3, 6), (1, 4, 4)]),
        (0.5, [(2, 2, 2, 3), (4, 5), (2, 1, 1, 5)]),
    ],
)
def test_one_worker_with_all_layers(tmp_path: Path, cuts: list[tuple[int, ...]], clip: float) -> None:
    """Buffers too, with steps that are made early, undone and made again."""
    program = changed(tmp_path, LAYERED, f"CLIP_NORM = {clip}")
    losses: list[float] = []
    held: Held = {}
    modules: dict[int, torch.nn.Module] = {}
    before: list[Chunk] = []
    for number, cut in enumerate(cuts):
        bundle = bundle_of(tmp_path, cut, (0,) * len(cut), 1, 4)
        if not held:
            held = built(bundle, program)
        else:
            stand(held, len(losses))
            before = list(held[0, 0].values())
            held = {worker: convert(chunks.values(), bundle, 0) for worker, chunks in held.items()}
        layers = {layer.number: layer.module for chunk in held[0, 0].values() for layer in chunk.layers}
        assert not modules or layers == modules, "layers are moved, not copied"
        modules = layers
        assert number == 0 or not any(chunk.stepper.gradients.bytes_held for chunk in before)
        assert [len(chunk.layers) for chunk in held[0, 0].values()] == list(cut)
        losses += run(bundle, held, number * STEPS, (number + 1) * STEPS)
    check(held, program, 4, losses)


def test_layers_that_change_their_worker(tmp_path: Path) -> None:
    """Two stages become three, and other numbers of pipelines and micro-batches with the same product."""
    program = changed(tmp_path, LAYERED, "CLIP_NORM = 0.05")
    before = bundle_of(tmp_path, (4, 5), (0, 1), 3, 2)
    after = bundle_of(tmp_path, (3, 4, 2), (0, 1, 2), 2, 3)
    held = built(before, program)
    losses = run(before, held, 0, STEPS)
    stand(held, STEPS)
    donors = {number: held[0, stage][number] for number, stage in enumerate(before.chunk_stages)}
    homes: dict[Worker, Worker] = {(0, 0): (0, 0), (1, 0): (1, 0), (0, 1): (0, 1), (1, 1): (1, 1)}
    homes |= {(0, 2): (2, 1), (1, 2): (2, 0)}
    converted = {
        worker: convert(held[home].values(), after, worker[1], received(held[home], donors, after, worker[1]))
        for worker, home in homes.items()
    }
    losses += run(after, converted, STEPS, 2 * STEPS)
    check(converted, program, 6, losses)


PLAIN = """
CLIP_NORM = {clip}
def layers():
    ends = [("first", nn.Linear(WIDTH, WIDTH)), ("last", nn.Linear(WIDTH, 1))]
    ends = [(name, layer.double()) for name, layer in ends]
    middle = [("a", Tied()), ("b", Tied()), ("fork", Fork()), ("join", Join()), ("c", Tied()), ("d", Tied())]
    return [ends[0], *middle, ends[1]]
def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        points = torch.randn({samples}, WIDTH, dtype=torch.float64, generator=generator)
        yield points, points.sin().sum(dim=1, keepdim=True)
"""
"""Layers in which a sample depends on no other, and draws nothing."""


@pytest.mark.parametrize(("clip", "samples"), [(0.05, 4), (0.5, 5), (1e6, 1)])
def test_micro_batches_split_in_two_forth_and_back(tmp_path: Path, clip: float, samples: int) -> None:
    """Halves under the second cut and again under the last, whole micro-batches between."""
    program = changed(tmp_path, LAYERED, PLAIN.format(clip=clip, samples=samples))
    losses: list[float] = []
    held: Held = {}
    for cut, microbatches in (((5, 3), 2), ((2, 6), 4), ((5, 3), 2), ((5, 3), 4)):
        bundle = bundle_of(tmp_path, cut, (0, 0), 2, microbatches)
        if not held:
            held = built(bundle, program)
        else:
            stand(held, len(losses))
            held = {worker: convert(chunks.values(), bundle, 0) for worker, chunks in held.items()}
        losses += run(bundle, held, len(losses), len(losses) + STEPS)
    check(held, program, 4, losses)


def received(own: Mapping[int, Chunk], donors: Mapping[int, Chunk], after: Bundle, stage: int) -> list[Layer]:
    """Layers that a stage of the next cut needs and this process lacks, as their holders have them."""
    have = {layer.number for chunk in own.values() for layer in chunk.layers}
    ranges = layers_of(after.cut)
    needed = {layer for number in chunks_of(after, stage) for layer in ranges[number]} - have
    setting = next(iter(own.values())).setting
    found: list[Layer] = []
    for donor in donors.values():
        states = {layer.number: copy.deepcopy(layer.state()) for layer in donor.layers}
        for number, held in ((each, states[each]) for each in needed & states.keys()):
            ((name, module),) = build_layers(setting.program, setting.seed + 1, number, number + 1)
            found.append(Layer(setting.program, number, name, module))
            found[-1].load(held)
    assert {layer.number for layer in found} == needed
    return found


def test_a_step_under_the_new_cut_can_be_taken_back(tmp_path: Path) -> None:
    one = bundle_of(tmp_path, (4, 5), (0, 0), 1, 4)
    other = bundle_of(tmp_path, (6, 3), (0, 0), 1, 4)
    held = built(one, LAYERED)
    run(one, held, 0, 2)
    stand(held, 2)
    held = {worker: convert(chunks.values(), other, 0) for worker, chunks in held.items()}
    first = [chunk.module.state_dict() for chunk in held[0, 0].values()]
    kept = [{name: value.clone() for name, value in state.items()} for state in first]
    run(other, held, 2, 3)
    assert any(
        not torch.equal(state[name], then[name])
        for state, then in zip(first, kept, strict=True)
        for name in then
    )
    stand(held, 2)
    for state, then in zip(first, kept, strict=True):
        torch.testing.assert_close(state, then, rtol=0, atol=0)
    held = {worker: convert(chunks.values(), one, 0) for worker, chunks in held.items()}
    losses = run(one, held, 2, 4)
    assert losses == pytest.approx(train_alone(LAYERED, 1, 4, 4).losses[2:], rel=1e-12)


def test_the_step_before_the_switch_can_be_taken_back_too(tmp_path: Path) -> None:
    """No run does this; but what a layer needs for it moves with the layer."""
    one = bundle_of(tmp_path, (4, 5), (0, 0), 1, 4)
    other = bundle_of(tmp_path, (6, 3), (0, 0), 1, 4)
    held = built(one, LAYERED)
    run(one, held, 0, 2)
    held = {worker: convert(chunks.values(), other, 0) for worker, chunks in held.items()}
    stand(held, 1)
    assert run(other, held, 1, 3) == pytest.approx(train_alone(LAYERED, 1, 4, 3).losses[1:], rel=1e-12)


def test_layers_that_are_not_here_are_named_and_nothing_changes(tmp_path: Path) -> None:
    one = bundle_of(tmp_path, (4, 5), (0, 1), 1, 4)
    other = bundle_of(tmp_path, (6, 3), (0, 1), 1, 4)
    held = built(one, LAYERED)
    losses = run(one, held, 0, 1)
    with pytest.raises(LayersMissingError, match=r"layers \[4, 5\] are not here"):
        convert(held[0, 0].values(), other, 0)
    losses += run(one, held, 1, 3)
    check(held, LAYERED, 4, losses)


def test_a_program_in_whole_stages_is_not_cut_anew(tmp_path: Path) -> None:
    """It trains under its own cut as ever, whatever other cuts there are plans of."""
    own, other = (
        replace(chunked_job((0, 1), 1, 2), cut=cut, layer_costs=layer_costs((1,) * 4))
        for cut in ((2, 2), (1, 3))
    )
    for name, recuts in (("fixed", []), ("free", [[plan_failed(other, failure_set([]))]])):
        plan = plan_failed(own, failure_set([]))
        write_bundle(tmp_path / f"{name}.plan", source="", plans=[plan], recuts=recuts)
    program = load_program(BATCH_NORM)
    fixed, free = (Bundle.read(tmp_path / f"{name}.plan") for name in ("fixed", "free"))
    for bundle in (fixed, free):
        assert bundle.cut == (2, 2) and build_chunks(program, bundle, 1, 0, CPU)[1].layers[0].name == ""
