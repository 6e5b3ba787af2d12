"""Every worker of a stage fails: the job goes on from copies in memory, and reads nothing from a disk."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recycle_compiler.ir.job import JobSpec
from tests.compiler.test_sharded import sharded
from tests.runtime.checkpoint.runs import JOB, losses, plans, run, train_in_turns, with_dropout
from tests.runtime.recovery.sliced import RANKS, SLICED, check_saved
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import Failed
from tests.support.jobs import unit_job

STEPS = 16
EVERY = 4
SHARDED = sharded(unit_job(2, 3, 2))
"""Every shard of optimizer state has two owners, of three workers of its stage."""
EXPERTS = replace(SHARDED, slots=4, placed_every=1)
SHARED_EXPERTS = str(Path(__file__).resolve().parents[1] / "training" / "programs" / "shared_experts.py")


def went_back(events: list[str]) -> str:
    (found,) = [event for event in events if "the job goes on from" in event]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "faults", "why"),
    [
        (JOB, ("kill=0:1@11", "kill=1:1@11"), "every worker of stage 1 has failed"),
        (JOB, ("kill=0:1@8.copy", "kill=1:1@8.0"), "every worker of stage 1 has failed"),
        (SHARDED, ("kill=0:1@11", "kill=1:1@11"), "of the optimizer state of layer"),
        (EXPERTS, ("kill=0:1@11", "kill=1:1@11"), "of the optimizer state of layer"),
    ],
    ids=["a-step", "a-copy", "both-owners-of-a-shard", "both-owners-of-experts"],
)
def test_a_stage_is_lost_and_training_goes_on(
    tmp_path: Path, job: JobSpec, faults: tuple[str, ...], why: str
) -> None:
    """At some step, and while the next copy is being made; or only some of its optimizer state is lost."""
    program = SHARED_EXPERTS if job.slots else with_dropout(tmp_path)
    failed: list[Failed] = [[(0, 1)], *([[(0, 1), (1, 1)]] if job.sharding is not None else [])]
    result, events = run(
        plans(tmp_path / "job.plan", job, *failed),
        program,
        STEPS,
        neighbour_copies=EVERY,
        max_resumes=1,
        faults=faults,
        save=str(tmp_path),
        heartbeat_timeout=20.0,
    )
    assert why in went_back(events)
    assert "goes on from copies in memory with step" in went_back(events)
    (cost,) = [event for event in events if event.startswith("copy of step")]
    assert "training paused for" in cost
    alone, states = train_in_turns(program, job.stages, [(STEPS, job.pipelines * job.microbatches)])
    found = losses(result)
    assert list(found) == list(range(STEPS))
    assert list(found.values()) == pytest.approx(alone, rel=1e-12)
    for path in tmp_path.glob("worker-*.pt"):
        file = torch.load(path, weights_only=True)
        for key, value in states[int(path.name.split("-")[2])].items():
            here = file.get("experts", {}).get(key)
            expected = value if here is None else value[here]
            assert file["model"][key].sub(expected).abs().max() <= 1e-9


@pytest.mark.slow
def test_every_rank_goes_on_from_its_own_slices(tmp_path: Path) -> None:
    """Two stages of one worker each, of two tensor-parallel processes; all of one stage fails."""
    job = replace(unit_job(2, 1, 2), tensor=RANKS)
    result, events = run(
        plans(tmp_path / "job.plan", job),
        SLICED,
        STEPS,
        neighbour_copies=EVERY,
        max_resumes=1,
        faults=("kill=0:1@11",),
        save=str(tmp_path),
        heartbeat_timeout=20.0,
    )
    assert "goes on from copies in memory with step" in went_back(events)
    alone = train_alone(SLICED, 1, job.microbatches, STEPS, cut=(4,))
    found = losses(result)
    assert list(found) == list(range(STEPS))
    assert list(found.values()) == pytest.approx(alone.losses, rel=1e-9)
    check_saved(tmp_path, job.stages, alone.states[0])
