"""First layout of a job that leaves stages and pipelines to the compiler."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.ir.job import PER_CHUNK, JobSpec, parse_job, print_job
from recycle_compiler.planner.compile import compile_job
from recycle_compiler.planner.start import NoStartError, started
from tests.support.layered_text import LAYERED
from tests.support.layers import layer_costs, layered_job

MANY_LAYERS = """\
job deep {{
  parallel {{ {shape} }}
  batch    {{ microbatches = 4 }}
  layers   {{ count = 600  unit = slot  forward = 1  backward_input = 1  backward_weight = 1 }}
}}
"""

OF_THE_GRID = ("stages", "pipelines", "microbatches", "chunk_stages", "cut", "free_workers")


def free(layers: int, workers: int, units: int, *, capacity: int | None = None) -> JobSpec:
    """A job of equal layers whose workers may stand anywhere; state takes as much as an activation."""
    costs = layer_costs((1000,) * layers, resident=1000, capacity=capacity)
    job = layered_job(costs, (layers,), workers, units // workers if units % workers == 0 else 1)
    return replace(job, pipelines=units, microbatches=1, free_workers=workers)


def test_another_job_stays_as_it_is() -> None:
    job = layered_job(layer_costs((1000, 1000)), (1, 1), pipelines=2, microbatches=2)
    assert started(job) is job


def test_every_stage_gets_as_many_workers_and_all_layers_are_there() -> None:
    # Half of the layers with one activation is all that fits.
    found = started(free(8, 6, 12, capacity=8000))
    assert found.workers == 6 and found.stages > 1
    assert sum(found.cut) == 8 and len(found.cut) == found.stages
    assert found.pipelines * found.microbatches == 12
    assert not found.is_free and found.layer_costs is not None


def test_workers_that_fill_no_grid_leave_cells_vacant() -> None:
    # Seven workers can only stand on one stage, which does not fit.
    job = free(8, 7, 12, capacity=8000)
    found = started(replace(job, failures=1))
    assert found.present == 7 and found.vacant == found.workers - 7 > 0
    assert found.failures == found.vacant + 1 and not list(found.verify())
    assert parse_job(print_job(found).splitlines()) == found
    plans = compile_job(found, failures=1)
    assert [len(plan.failed) for plan in plans] == [found.vacant, found.vacant + 1]
    of_six = started(free(8, 6, 12, capacity=8000))
    assert plans[0].claims.period < compile_job(of_six, failures=0)[0].claims.period


def test_a_start_survives_what_the_job_tolerates() -> None:
    job = replace(free(8, 8, 8), redundancy=1, failures=4)
    found = started(job)
    assert found.stages * (found.pipelines - 1) >= found.failures


def test_a_model_that_no_grid_holds_is_refused_in_words() -> None:
    with pytest.raises(
        NoStartError, match="2 workers cannot hold every layer on 2 of them and survive 0 failures"
    ):
        started(free(8, 2, 12, capacity=8000))


def test_all_that_is_not_about_the_grid_is_kept() -> None:
    job = replace(free(8, 6, 12, capacity=8000), split_ppm=100_000, grouping=False, failures=2, redundancy=3)
    found = started(job)
    same = {field.name for field in fields(job) if getattr(found, field.name) == getattr(job, field.name)}
    assert {field.name for field in fields(job)} - same <= {*OF_THE_GRID, *PER_CHUNK}


def test_halves_of_micro_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one micro-batch a worker of a stage, two halves pay."""
    path = tmp_path / "free.job"
    text = LAYERED.replace("pipeline = 2  data = 4  cut = [3, 3]", "workers = 8")
    path.write_text(text.replace("microbatches = 4", "microbatches = 4  split = 10%"))
    assert main(["compile", str(path), "-o", str(tmp_path / "free.plan"), "--jobs", "1"]) == 0
    assert "in halves" in capsys.readouterr().err


def test_too_many_layers_to_compare_cuts_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, out = tmp_path / "deep.job", str(tmp_path / "deep.plan")
    job.write_text(MANY_LAYERS.format(shape="pipeline = 2  data = 2"))
    assert main(["compile", str(job), "-o", out, "--jobs", "1"]) == 0
    assert "deep keeps its own cut: it has 600 layers" in capsys.readouterr().err
    job.write_text(MANY_LAYERS.format(shape="workers = 4"))
    assert main(["compile", str(job), "-o", out, "--jobs", "1"]) == 3
    assert "it has 600 layers, and cuts are compared up to 512" in capsys.readouterr().err
