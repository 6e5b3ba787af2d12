"""Groups of pipelines with cuts of their own train as one process does: all holders of a layer sum it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups, parse_any_layout
from recycle_compiler.ir.job import Techniques
from recycle_compiler.ir.target import Target
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import STEPS, changed
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import quick_plan
from tests.support.layers import layer_costs, layered_job

LAYERED = str(Path(__file__).resolve().parents[1] / "recovery" / "programs" / "layered.py")
# Threads share random numbers, so nothing may be drawn.
CALM = """
_layers = layers
def layers():
    found = _layers()
    for _, layer in found:
        layer.dropout.p = 0.0
    return found
"""
LAYOUTS = ("3x2,3x2@6+6x1@2", "2x1,4x2@3+3x1,2x1,1x1@5", "6x1@3+3x1,3x1@3+4x1,2x1@2")


def plan_file(folder: Path, text: str, techniques: Techniques, owners: int = 0) -> str:
    layout = parse_any_layout(text)
    assert isinstance(layout, GroupedLayout)
    costs = layer_costs((1000,) * 6, reduce=200, optimizer=100, transfer=100)
    job = replace(layered_job(costs, (6,), 2, 4, redundancy=1, owners=owners), techniques=techniques)
    derived = job_of_groups(job, layout)
    path = folder / "groups.plan"
    write_bundle(path, source="", plans=[quick_plan(Target(derived, absent_of_groups(derived, layout)))])
    return str(path)


def check_groups_train(plan: str, program: str, workers: int) -> None:
    alone = train_alone(program, 1, 8, STEPS)
    losses, trained = train_in_threads(plan, program, 0, STEPS)
    assert losses == pytest.approx(alone.losses, rel=1e-10)
    assert len(trained) == workers
    for worker in trained.values():
        for module in worker.modules.values():
            for name, tensor in module.state_dict().items():
                torch.testing.assert_close(tensor, alone.states[0][name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stagger", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(("text", "workers"), list(zip(LAYOUTS, (5, 6, 5), strict=True)))
def test_equal_to_one_process(tmp_path: Path, text: str, workers: int, stagger: bool) -> None:
    techniques = Techniques(adaptive=True, decouple=stagger, stagger=stagger)
    program = changed(tmp_path, LAYERED, CALM)
    check_groups_train(plan_file(tmp_path, text, techniques), program, workers)


@pytest.mark.parametrize(
    ("stagger", "owners"), [(False, 0), (True, 2), pytest.param(True, 0, marks=pytest.mark.slow)]
)
def test_the_norm_is_that_of_all_layers(tmp_path: Path, stagger: bool, owners: int) -> None:
    """Every layer once, though workers of both groups hold it; after a staggered step it is made again. Where
    optimizer state is in shards, workers of both groups own them."""
    program = changed(tmp_path, LAYERED, f"CLIP_NORM = 0.05\n{CALM}")
    techniques = Techniques(adaptive=True, decouple=True, stagger=stagger)
    check_groups_train(plan_file(tmp_path, LAYOUTS[0], techniques, owners), program, 5)
