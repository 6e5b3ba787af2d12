"""Checkpoints of optimizer state in shards: every number once, and any other job goes on from them."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from recycle_compiler.ir.job import JobSpec
from recycle_runtime.checkpoint.manifest import Manifest, shape_of
from recycle_runtime.checkpoint.whole_model import CheckpointReader
from recycle_runtime.checkpoint.writer import restore, write_layers
from recycle_runtime.cli.main import main
from recycle_runtime.execution.chunk import build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.state.layer_state import written_states
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from tests.compiler.test_sharded import sharded
from tests.runtime.checkpoint.runs import plans
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import MLP, changed
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import unit_job

PER_STEP = 12
SHARED_EXPERTS = str(Path(__file__).resolve().parents[1] / "training" / "programs" / "shared_experts.py")
CPU = torch.device("cpu")


EXPERTS = """
del build_stage

def layers():
    return [(f"blocks.{number}", Block().double()) for number in range(3)]
"""


def _job(cut: tuple[int, ...], pipelines: int, owners: int = 0, slots: int = 0) -> JobSpec:
    job = unit_job(len(cut), pipelines, PER_STEP // pipelines)
    return replace(sharded(job, owners) if owners else job, cut=cut, slots=slots, placed_every=min(slots, 1))


def _in_slots(worker: FixedPlanWorker) -> dict[str, list[int]]:
    """By the names of stacked parameters: experts whose rows they have."""
    layers = [layer for chunk in worker.chunks.values() for layer in chunk.layers]
    return {
        layer.parameter_names[each.number]: list(each.experts.resident or ())
        for layer in layers
        for each in layer.experts.stacked.values()
    }


def _written(folder: Path, workers: Collection[FixedPlanWorker], bundle: Bundle, step: int) -> Path:
    """A checkpoint of what these write, after all of them have found that no other writes the same."""
    folder.mkdir()
    checksums: dict[str, int] = {}
    for worker in workers:
        mine = write_layers(worker.chunks.values(), folder)
        assert not mine.keys() & checksums.keys()
        checksums |= mine
    Manifest(step, step * PER_STEP, 0, shape_of(bundle), checksums).write(folder)
    return folder


def _numbers(workers: Collection[FixedPlanWorker]) -> Counter[str]:
    """Of what all workers write, in weights and in what the optimizer keeps of them."""
    found: Counter[str] = Counter()
    for state in (each for worker in workers for each in written_states(worker.chunks.values())):
        kind = "optimizer" if "-optimizer-" in state.name else "layer"
        found[kind] += sum(tensor.numel() for tensor in state.tensors.values() if tensor.dim())
    return found


CHAINS = [
    (MLP, "CLIP_NORM = 0.5", [_job((5, 5), 3, 2), _job((3, 3, 4), 2, 1), _job((6, 4), 2), _job((10,), 4, 3)]),
    (
        SHARED_EXPERTS,
        EXPERTS,
        [_job((1, 2), 3, 2, 2), _job((1, 1, 1), 2, 1, 3), _job((2, 1), 2), _job((3,), 4, 3, 1)],
    ),
]


@pytest.mark.parametrize(("original", "change", "chain"), CHAINS, ids=["layers", "experts"])
def test_any_other_job_goes_on(tmp_path: Path, original: str, change: str, chain: list[JobSpec]) -> None:
    """With other owners, another number of pipelines, another cut, whole state, and in shards again; with
    experts in slots, in others, whole, and in slots again."""
    program = changed(tmp_path, original, change)
    before: tuple[Path, int] | None = None
    for number, job in enumerate(chain):
        steps = 3 + number
        path = plans(tmp_path / f"{number}.plan", job)
        losses, workers = train_in_threads(path, program, 0, steps, checkpoint=before)
        alone = train_alone(program, 1, PER_STEP, steps, cut=(sum(job.cut),))
        first = 0 if before is None else before[1]
        assert losses == pytest.approx(alone.losses[first:], rel=1e-12)
        weights = sum(value.numel() for value in alone.states[0].values())
        for worker in workers.values():
            here = _in_slots(worker)
            for module in worker.modules.values():
                for name, value in module.state_dict().items():
                    expected = alone.states[0][name]
                    expected = expected[here[name]] if name in here else expected
                    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
        if job.sharding is not None:
            # Adam keeps two numbers for each weight; weights of experts are beside them.
            inside = {name: each for name, each in alone.states[0].items() if ".experts." in name}
            stacked = sum(each.numel() for each in inside.values()) if job.slots else 0
            expected = {"layer": weights - stacked, "optimizer": 2 * weights + stacked}
            assert _numbers(workers.values()) == expected
            before = _written(tmp_path / str(number), workers.values(), Bundle.read(path), steps), steps
        else:
            # Every worker has everything, and the first of each stage writes.
            writers = [worker for (pipeline, _), worker in workers.items() if pipeline == 0]
            before = _written(tmp_path / str(number), writers, Bundle.read(path), steps), steps
        read = {name: torch.empty_like(value) for name, value in alone.states[0].items()}
        dcp.load(read, storage_reader=CheckpointReader(before[0]), no_dist=True)
        torch.testing.assert_close(read, dict(alone.states[0]), rtol=1e-12, atol=1e-12)
        exported = tmp_path / f"exported-{number}"
        assert main(["--quiet", "export", str(before[0]), "-o", str(exported)]) == 0
        found = load_file(exported / "model.safetensors")
        torch.testing.assert_close(found, dict(alone.states[0]), rtol=1e-12, atol=1e-12)


def test_a_rate_that_has_no_effect_is_told(tmp_path: Path) -> None:
    """The program asks for another rate than the checkpoint has, in shards or whole, read by either."""
    other = changed(tmp_path, MLP, "optimizer = lambda parameters: torch.optim.Adam(parameters, lr=0.5)")
    paths = [plans(tmp_path / f"{owners}.plan", _job((10,), 2, owners)) for owners in (1, 0)]
    for path in paths:
        _, workers = train_in_threads(path, MLP, 0, 1)
        writers = list(workers.values())[: len(workers) if path == paths[0] else 1]
        kept = _written(Path(path).with_suffix(".kept"), writers, Bundle.read(path), 1)
        for program, reader in product((MLP, other), paths):
            (chunk,) = build_chunks(load_program(program), Bundle.read(reader), 0, 0, CPU).values()
            told = ["the optimizer goes on as it was saved, with lr 0.003 in place of 0.5"]
            # Another source is no reason to stop here.
            assert restore(chunk, kept, 1, accepts_changes=True) == (told if program == other else [])
