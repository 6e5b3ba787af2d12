"""A model whose head is its embedding trains as plain PyTorch trains it, wherever a plan puts the two."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.program.errors import ProgramError
from tests.compiler.test_sharded import sharded
from tests.runtime.training.compare import Failed, changed, plan_file
from tests.runtime.training.threads import train_in_threads
from tests.runtime.training.tied_alone import train_tied_alone
from tests.support.chunks import chunked_job

TIED = str(Path(__file__).resolve().parent / "programs" / "tied.py")
STEPS = 14
"""More than it takes until steps are made before the norm is known again."""

BY_ONE = """
everything, count = layers, len(layers())
del layers
LAYER_COUNT = count
TIED = [("wte.weight", "head.out.weight")]

def build_layers(first, last):
    made = [("wte", nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64))] if first == 0 else []
    made += [(f"blocks.{number - 1}", Block()) for number in range(max(1, first), min(last, count - 1))]
    return made + ([("head", Head())] if last == count else [])
"""
STAGES = """
del layers
TIED = [("wte.weight", "out.weight")]

class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.block = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64), Block()

    def forward(self, value):
        return self.block(self.wte(value))

def build_stage(stage, stages):
    return First() if stage == 0 else Head() if stage == stages - 1 else nn.Sequential(Block(), Block())
"""


def tied_job(stages: int, techniques: Techniques, microbatches: int = 3) -> JobSpec:
    job = chunked_job(tuple(range(stages)), 2, microbatches, techniques=techniques)
    return replace(job, tied=(0, stages - 1)) if stages > 1 else job


def check_equal(folder: Path, job: JobSpec, program: str, failed: Failed | None = None) -> None:
    alone = train_tied_alone(program, job.chunks, job.pipelines * job.microbatches, STEPS)
    losses, workers = train_in_threads(plan_file(folder, job, failed or []), program, 0, STEPS)
    assert losses == pytest.approx(alone.losses, rel=1e-10)
    for worker in workers.values():
        for module in worker.modules.values():
            for name, tensor in module.state_dict().items():
                torch.testing.assert_close(tensor, alone.states[0][name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("decouple", "stagger", "clip"),
    [(False, False, 0.5), (False, True, None), (True, False, None), (True, True, 0.5)],
)
def test_equal_to_plain_training(tmp_path: Path, decouple: bool, stagger: bool, clip: float | None) -> None:
    """With 1F1B and with decoupled backwards; what is shared counts once in the norm."""
    program = changed(tmp_path, TIED, f"CLIP_NORM = {clip}")
    check_equal(tmp_path, tied_job(3, Techniques(True, decouple, stagger)), program)


@pytest.mark.parametrize("stagger", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_optimizer_state_in_shards(tmp_path: Path, stagger: bool) -> None:
    """Copies of a parameter are summed whole, and each is stepped by the owners of its rows."""
    program = changed(tmp_path, TIED, "CLIP_NORM = 0.5")
    job = replace(tied_job(3, Techniques(True, True, stagger), 2), pipelines=3)
    check_equal(tmp_path, sharded(job), program, [(1, 2)])


@pytest.mark.parametrize("failed", [[(0, 2)], [(1, 0), (1, 2)]])
def test_with_failures(tmp_path: Path, failed: Failed) -> None:
    check_equal(tmp_path, tied_job(3, Techniques()), TIED, failed)


@pytest.mark.parametrize("stages", [1, 2])
def test_both_in_one_chunk_and_in_neighbours(tmp_path: Path, stages: int) -> None:
    program = changed(tmp_path, TIED, "CLIP_NORM = 0.5")
    check_equal(tmp_path, tied_job(stages, Techniques()), program)


@pytest.mark.parametrize("change", [BY_ONE, STAGES], ids=["layers-one-by-one", "whole-stages"])
def test_programs_that_name_them(tmp_path: Path, change: str) -> None:
    check_equal(tmp_path, tied_job(3, Techniques()), changed(tmp_path, TIED, change + "\nCLIP_NORM = 0.5"))


@pytest.mark.parametrize("change", ["", BY_ONE, STAGES], ids=["found", "layers-one-by-one", "whole-stages"])
def test_a_plan_that_does_not_know_is_refused(tmp_path: Path, change: str) -> None:
    job = replace(tied_job(3, Techniques()), tied=())
    with pytest.raises(ProgramError, match="weight are one parameter, and the plan puts them on") as caught:
        train_in_threads(plan_file(tmp_path, job, []), changed(tmp_path, TIED, change), 0, 1)
    assert "write `tied = ends` into the `parallel` block of the job" in caught.value.hint


def test_a_plan_that_ties_other_layers_is_refused(tmp_path: Path) -> None:
    job = replace(tied_job(3, Techniques()), tied=(0, 1))
    with pytest.raises(ProgramError, match=r"one parameter, (in other layers|and the plan puts them)"):
        train_in_threads(plan_file(tmp_path, job, []), TIED, 0, 1)


def test_a_plan_with_a_tie_runs_a_program_without(tmp_path: Path) -> None:
    program = changed(tmp_path, TIED, BY_ONE.replace("TIED =", "UNUSED ="))
    losses, _ = train_in_threads(plan_file(tmp_path, tied_job(3, Techniques()), []), program, 0, 2)
    assert len(losses) == 2


@pytest.mark.parametrize(
    ("ties", "words"),
    [
        ('[("wte.weight", "head.bias")]', "TIED names head.bias, and no layer has it"),
        ('[("wte.weight", "head.norm.weight")]', "are tied, and cannot be one"),
    ],
)
def test_names_that_are_wrong(tmp_path: Path, ties: str, words: str) -> None:
    with pytest.raises((ProgramError, StreamError), match=words):
        train_in_threads(
            plan_file(tmp_path, tied_job(3, Techniques()), []),
            changed(tmp_path, TIED, f"TIED = {ties}"),
            0,
            1,
        )
