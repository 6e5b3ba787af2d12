"""Traces of torch's profiler, read as the trace of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.analysis.trace_diff.torch_profiler import RankGrid, is_profile, trace_of_profiles
from recycle_compiler.analysis.trace_diff.trace_file import Ran, TraceError
from recycle_compiler.cli.main import main
from recycle_compiler.ir.failure import Worker

ALONE = RankGrid(pipelines=1, stages=1, tensor=1)


def event(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "args": args}


def note(name: str, start: float, length: float) -> dict[str, Any]:
    return event("user_annotation", name, start, length)


def profile(*events: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 9}}
    return {"schemaVersion": 1, "deviceProperties": [], "traceEvents": list(events), **info}


def step(number: int, at: float, rank: int | None = None, prefix: str = "PP:0") -> dict[str, Any]:
    names = (f"{prefix}F0", f"{prefix}B0", "nccl:all_reduce", "Optimizer.step#AdamW.step")
    work = (note(name, at + 10 * number, 8) for number, name in enumerate(names))
    return profile(note(f"ProfilerStep#{number}", at, 60), *work, rank=rank)


def test_annotations_of_the_cpu() -> None:
    trace = trace_of_profiles([step(7, 1000)], ALONE)
    assert [(op.name, op.start, op.end) for op in trace.ops] == [
        ("F0.0", 0, 8),
        ("B0.0", 10, 18),
        ("R", 20, 28),
        ("O", 30, 38),
    ]
    assert trace.steps == (7,) and trace.workers == (Worker(0, 0),)


def test_kernels_say_when_an_op_ran() -> None:
    launches = [event("cuda_runtime", "cudaLaunchKernel", 1002 + at, 1, correlation=at) for at in (0, 3)]
    kernels = [event("kernel", "gemm", 1020 + 50 * at, 30, correlation=at) for at in (0, 3)]
    shown = event("gpu_user_annotation", "Backward 0", 1300, 40)
    notes = (note("ProfilerStep#1", 1000, 400), note("Forward 0", 1001, 8), note("Backward 0", 1010, 8))
    trace = trace_of_profiles([profile(*notes, *launches, *kernels, shown)], ALONE)
    assert trace.ops[:2] == (
        Ran("F0.0", 1, Worker(0, 0), 0.0, 180.0, 0.0),
        Ran("B0.0", 1, Worker(0, 0), 280.0, 320.0, 0.0),
    )


def test_ranks_are_workers() -> None:
    profiles = [step(1, 1000, rank=rank) for rank in (0, 1, 2, 3, 6)]
    grid = RankGrid(pipelines=2, stages=2, tensor=2)
    assert trace_of_profiles(profiles, grid).workers == (Worker(0, 0), Worker(1, 0), Worker(1, 1))
    assert trace_of_profiles(profiles, grid).ops[4].name == "F1.0"


@pytest.mark.parametrize("is_within", [True, False], ids=["ZeroRedundancyOptimizer", "after the step"])
def test_weights_are_gathered_after_a_sharded_step(is_within: bool) -> None:
    """Torch's own optimizer of shards sends weights within its step."""
    outer = "Optimizer.step#ZeroRedundancyOptimizer.step"
    whole = profile(
        note("ProfilerStep#2", 0, 90),
        *(note(f"{kind} 0", at, 8) for kind, at in (("Forward", 0), ("Backward", 10))),
        note("gloo:all_reduce", 20, 8),
        *([note(outer, 29, 50)] if is_within else []),
        note("Optimizer.step#AdamW.step", 30, 18),
        note("gloo:broadcast" if is_within else "nccl:_all_gather_base", 50, 8),
        note("gloo:broadcast" if is_within else "nccl:_all_gather_base", 60, 8),
    )
    trace = trace_of_profiles([whole], ALONE._replace(is_sharded=True))
    times = [(op.name, op.start, op.end) for op in trace.ops[2:]]
    assert times == [("R", 20, 28), ("O", 30, 48), ("G", 50, 68)]
    assert [op.name for op in trace_of_profiles([whole], ALONE).ops[2:]] == ["R", "O"]


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        ([profile(note("PP:0F0", 0, 1))], "has no op of a pipeline within a step"),
        ([step(1, 0, rank=4)], "rank 4 is none of the job"),
        ([step(1, 0, rank=0), step(1, 0, rank=0)], "two profiles are of rank 0"),
        ([profile({"ph": "X", "cat": "user_annotation", "name": "x"})], "has no time"),
    ],
)
def test_mistakes(profiles: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(TraceError, match=words):
        trace_of_profiles(profiles, ALONE)


def test_our_own_traces_are_no_profiles() -> None:
    assert is_profile(step(1, 0)) and not is_profile({"traceEvents": []}) and not is_profile([])


def test_a_folder_beside_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "one.job"
    job.write_text(
        "job one { parallel { pipeline = 1  data = 1 }  batch { microbatches = 1 }  techniques { adaptive }\n"
        "profile { unit = us  forward = 8  backward_input = 4  backward_weight = 4  optimizer = 8 } }\n"
    )
    plan, folder = tmp_path / "one.plan", tmp_path / "traces"
    assert main(["compile", str(job), "-o", str(plan), "--quiet"]) == 0
    folder.mkdir()
    assert main(["diff", str(plan), str(folder)]) == 1
    assert "the folder has no *.json" in capsys.readouterr().err
    (folder / "rank0.json").write_text(json.dumps(step(3, 1000)))
    assert main(["diff", str(plan), str(folder)]) == 0
    assert "order: as planned on every worker in every step" in capsys.readouterr().out
