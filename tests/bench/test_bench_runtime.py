"""Computations of the runtime's benchmarks; nothing is timed here."""

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.beside_torch import (
    CONTESTANTS,
    LOSSES_AGREE,
    ONE_F_ONE_B,
    ZERO_BUBBLE,
    check_losses,
    cut_in_four,
    in_v,
    profiled_job,
    table,
)
from bench.control_plane import exponent
from bench.interpreter_cost import CASES, per_instruction
from bench.models import MODELS, gpt_text
from bench.report import ROOT, job_path
from bench.run import SECTIONS
from bench.turns import Report, Turn, TurnError, joined, share, undisturbed
from recycle_compiler.backends.torch_csv import torch_csv
from recycle_compiler.frontend import load_job
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.execution.interpreter import Interpreter
from recycle_runtime.plan.isa import Instruction, Opcode
from tests.support.jobs import NONE


def turn(seconds: float, cpu: float = 0.0, others: float = 0.0) -> Turn:
    return Turn(seconds, cpu, [], others)


def test_a_row_for_each_schedule_of_torch() -> None:
    turns = {one.name: [turn(0.2, 0.3), turn(0.4, 0.5), turn(0.6, 0.7)] for one in CONTESTANTS}
    turns[ZERO_BUBBLE] = [turn(0.1, 0.2), turn(0.3, 0.4), turn(0.6, 0.6)]
    rows = table("64", turns)
    expected = [(one.name, name) for one in CONTESTANTS for name in one.beside]
    assert [(row[1], row[4]) for row in rows] == expected
    assert rows[0] == ("64", "Schedule1F1B", "400.0", "500.0", ONE_F_ONE_B, "400.0", "500.0", "1.000")
    assert rows[1][2:] == ("400.0", "500.0", ZERO_BUBBLE, "300.0", "400.0", "0.750")


def test_shares_are_taken_within_a_round() -> None:
    assert share([1.0, 10.0, 3.0], [2.0, 10.0, 3.0]) == 1.0
    assert share([1.0, 5.0, 9.0], [2.0, 10.0, 10.0]) == 0.5


def test_a_turn_lasts_from_the_first_start_to_the_last_end() -> None:
    reports = [
        Report(1_000_000_000, 3_000_000_000, 500_000_000, []),
        Report(1_500_000_000, 5_000_000_000, 700_000_000, [2.5, 2.0]),
    ]
    assert joined(reports, 2) == Turn(2.0, 0.6, [2.5, 2.0])


def test_disturbed_turns_are_taken_again() -> None:
    taken: Iterator[Turn] = iter([turn(3, others=1.0), turn(2, others=0.01), turn(1)])
    assert undisturbed(lambda: next(taken), pause=0) == turn(2, others=0.01)
    assert len(list(taken)) == 1


def test_the_least_disturbed_turn_must_do_in_the_end() -> None:
    taken = iter([turn(3, others=1.0), turn(2, others=0.5), turn(1, others=0.7)])
    assert undisturbed(lambda: next(taken), attempts=3, pause=0) == turn(2, others=0.5)


def test_losses_that_agree_pass() -> None:
    check_losses({"one": [2.0, 1.5], "other": [2.0 * (1 + LOSSES_AGREE / 2), 1.5]})


def test_losses_that_differ_are_named() -> None:
    with pytest.raises(TurnError, match=r"step 1: other has a loss of 1.6, one of 1.5"):
        check_losses({"one": [2.0, 1.5], "other": [2.0, 1.6]})
    with pytest.raises(TurnError, match="other has 1 losses, one has 2"):
        check_losses({"one": [2.0, 1.5], "other": [2.0]})
    with pytest.raises(TurnError, match="nan"):
        check_losses({"one": [2.0], "other": [float("nan")]})


def test_every_contestant_is_a_function() -> None:
    source = (ROOT / "bench" / "contestants.py").read_text(encoding="utf-8")
    functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert {one.work for one in CONTESTANTS} <= functions


def test_programs_are_python_and_have_their_width() -> None:
    for model in MODELS:
        compile(model.program, model.name, "exec")
    assert "\nWIDTH = 256\n" in gpt_text(256)


def test_the_plan_without_techniques_is_one_f_one_b() -> None:
    job = load_job(str(job_path("beside-torch"))).spec
    plain = plan_failed(replace(job, techniques=NONE), ())
    first, second = torch_csv(plain).splitlines()
    assert first == "0F0,0F1," + ",".join(f"0B{number},0F{number + 2}" for number in range(6)) + ",0B6,0B7"
    assert second == ",".join(f"1F{number},1B{number}" for number in range(8))


def test_a_job_in_a_v_has_two_chunks_on_a_worker_and_the_memory_of_one_f_one_b(tmp_path: Path) -> None:
    path = tmp_path / "four.job"
    path.write_text(cut_in_four(job_path("beside-torch").read_text(encoding="utf-8")))
    four = load_job(str(path)).spec
    job = in_v(four)
    assert not list(job.verify())
    assert (job.stages, job.chunk_stages, job.microbatches) == (2, (0, 1, 1, 0), 8)
    assert job.capacity == (4 * four.activation[0],) * 2


def test_profiled_jobs_have_the_memory_of_one_f_one_b(tmp_path: Path) -> None:
    stage = {
        "forward": 3_000_000, "backward_input": 2_000_000, "backward_weight": 1_000_000,
        "backward": 3_000_000, "optimizer": 500_000, "reduce": 0, "transfer": 1000,
        "saved_bytes": 4000, "kept_bytes": 3000, "parameter_bytes": 100, "gradient_bytes": 50,
        "boundary_bytes": 10, "activation_bytes": 4000,
    }  # fmt: skip
    head = {"format": "recycle-profile", "version": 1, "device": "cpu", "unit": "ns"}
    profile, job = tmp_path / "profile.json", tmp_path / "profiled.job"
    profile.write_text(json.dumps({**head, "stages": [stage] * 2}))
    job.write_text(profiled_job(profile.name, profile.read_text()))
    spec = load_job(str(job)).spec
    assert spec.capacity == tuple(2 * amount for amount in spec.activation)
    assert (spec.stages, spec.pipelines, spec.failures) == (2, 1, 0)


def test_streams_run_as_often_as_asked() -> None:
    seen: list[Instruction] = []
    stream = (Instruction(Opcode.REDUCE), Instruction(Opcode.OPTIMIZER))
    steps: list[int] = []
    per_instruction(
        Interpreter(stream, dict.fromkeys(Opcode, seen.append), (0, 0), 0, 1), steps.append, repeats=3
    )
    assert seen == [*stream] * 3
    assert steps == [0, 1, 2]


def test_the_cases_and_the_sections_are_there() -> None:
    assert all(job_path(case.job).exists() for case in CASES)
    assert {"beside_torch", "interpreter_cost"} <= set(SECTIONS)


def test_how_a_figure_grows() -> None:
    sizes = (256, 512, 1024, 2048, 4096)
    assert exponent(sizes, [3.0 * size for size in sizes]) == pytest.approx(1.0)
    assert exponent(sizes, [0.1 * size**2 for size in sizes]) == pytest.approx(2.0)
