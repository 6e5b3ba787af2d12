"""Checkpoints of optimizer state in shards: every number once, and any other job goes on from them."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from recycle_compiler.ir.job import JobSpec
from recycle_runtime.checkpoint.manifest import Manifest, shape_of
from recycle_runtime.checkpoint.whole_model import CheckpointReader
from recycle_runtime.checkpoint.writer import restore, write_layers
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

LAYERS, PER_STEP = 10, 12
CPU = torch.device("cpu")


def _job(cut: tuple[int, ...], pipelines: int, owners: int = 0) -> JobSpec:
    job = unit_job(len(cut), pipelines, PER_STEP // pipelines)
    return replace(sharded(job, owners) if owners else job, cut=cut)


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


def test_any_other_job_goes_on(tmp_path: Path) -> None:
    """With other owners, another number of pipelines, another cut, whole state, and in shards again."""
    program = changed(tmp_path, MLP, "CLIP_NORM = 0.5")
    chain = [
        (_job((5, 5), 3, owners=2), 3),
        (_job((3, 3, 4), 2, owners=1), 4),
        (_job((6, 4), 2), 5),
        (_job((10,), 4, owners=3), 6),
    ]
    before: tuple[Path, int] | None = None
    for number, (job, steps) in enumerate(chain):
        path = plans(tmp_path / f"{number}.plan", job)
        losses, workers = train_in_threads(path, program, 0, steps, checkpoint=before)
        alone = train_alone(program, 1, PER_STEP, steps, cut=(LAYERS,))
        first = 0 if before is None else before[1]
        assert losses == pytest.approx(alone.losses[first:], rel=1e-12)
        weights = sum(value.numel() for value in alone.states[0].values())
        for worker in workers.values():
            for module in worker.modules.values():
                for name, value in module.state_dict().items():
                    torch.testing.assert_close(value, alone.states[0][name], rtol=1e-12, atol=1e-12)
        if job.sharding is not None:
            # Adam keeps two numbers for each weight.
            assert _numbers(workers.values()) == {"layer": weights, "optimizer": 2 * weights}
            before = _written(tmp_path / str(number), workers.values(), Bundle.read(path), steps), steps
        else:
            # Every worker has everything, and the first of each stage writes.
            writers = [worker for (pipeline, _), worker in workers.items() if pipeline == 0]
            before = _written(tmp_path / str(number), writers, Bundle.read(path), steps), steps
        read = {name: torch.empty_like(value) for name, value in alone.states[0].items()}
        dcp.load(read, storage_reader=CheckpointReader(before[0]), no_dist=True)
        torch.testing.assert_close(read, dict(alone.states[0]), rtol=1e-12, atol=1e-12)


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
