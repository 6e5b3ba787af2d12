"""Computations of the benchmark over NCCL; nothing is timed here."""

import json
from typing import Any

import pytest
import torch

from bench.nccl_grid import (
    LEFT_OUT,
    PLANS,
    ROUND,
    SCHEDULES,
    SIZES,
    STAGES,
    TRACED_STEPS,
    blocks,
    covered,
    failed_text,
    grouped,
    job_text,
    joined,
    kernels_of,
    markdown,
    plan_rows,
    program_text,
    rounds_of,
    torch_rows,
    waits_of,
)
from recycle_runtime.plan.chrome_trace import chrome_trace
from recycle_runtime.plan.worker_ids import Worker


def result(step: float, losses: tuple[float, ...] = (2.0, 1.0)) -> dict[str, Any]:
    return {"rounds": [step - 1, step, step + 1], "losses": list(losses), "error": ""}


def test_a_round_is_some_steps_after_the_first_few() -> None:
    ends = [
        0.2 * step if step < LEFT_OUT else 0.1 * step + 0.1 * (LEFT_OUT - 1)
        for step in range(LEFT_OUT + 2 * ROUND)
    ]
    assert rounds_of(ends) == pytest.approx([100.0, 100.0])
    assert rounds_of(ends[:LEFT_OUT]) == []


def test_the_slowest_process_counts_and_losses_add_up() -> None:
    rows = [([5.0, 7.0], [0.0, 0.0]), ([6.0, 6.0], [1.5, 1.0])]
    assert joined(rows) == {"rounds": [6.0, 7.0], "losses": [1.5, 1.0], "error": ""}


def test_plans_are_compared_with_their_predictions_and_losses_with_the_first() -> None:
    ours = {"1F1B": result(210.0), "zero-bubble": result(198.0, (2.0, 1.001))}
    ours["1:1 failed"] = {"rounds": [], "losses": [], "error": "it takes too long"}
    predicted = {plan.name: 200.0 for plan in PLANS}
    _, first, second, failed = plan_rows(predicted, ours)
    assert first == ("1F1B", "6", "200.0", "210.0", "209.0-211.0", "1.050", "0.0e+00")
    assert second[-2:] == ("0.990", "1.0e-03")
    assert failed == ("1:1 failed", "5", "200.0", "it takes too long", "", "", "")


def test_ours_is_set_beside_schedules_of_torch() -> None:
    ours = {"1F1B": result(210.0), "zero-bubble": result(180.0)}
    theirs = {schedule.name: result(200.0) for schedule in SCHEDULES}
    theirs["ScheduleZBVZeroBubble"] = {"rounds": [], "losses": [], "error": "process 3: OutOfMemoryError"}
    _, first, second, failed = torch_rows(ours, theirs)
    assert first == ("Schedule1F1B", "200.0", "1F1B", "210.0", "1.050", "0.0e+00")
    assert second[2:5] == ("zero-bubble", "180.0", "0.900")
    assert failed[1] == "process 3: OutOfMemoryError"


def test_spans_are_covered_once_by_others_that_overlap() -> None:
    assert covered([(0, 10), (20, 30)], [(5, 8), (6, 12), (25, 26), (29, 40)]) == 5 + 2
    assert covered([(0, 10)], []) == 0


def test_message_kernels_are_told_from_sums_and_computation() -> None:
    def kernel(name: str, start: float, end: float, stream: int) -> dict[str, Any]:
        return {"cat": "kernel", "name": name, "ts": start, "dur": end - start, "args": {"stream": stream}}

    events = [
        kernel("ampere_gemm", 0, 4000, 7),
        kernel("ncclDevKernel_SendRecv(...)", 1000, 5000, 20),
        kernel("ncclDevKernel_AllReduce_Sum_f32", 4000, 6000, 24),
        {"cat": "gpu_memcpy", "name": "Memcpy", "ts": 0, "dur": 9},
        {"ph": "M", "name": "process_name"},
    ]
    assert kernels_of(events, 2) == {
        "computation": 2.0,
        "messages on stream 20": {"in a step": 0.5, "ms": 2.0, "under computation": 0.75},
        "sums on stream 24": {"in a step": 0.5, "ms": 1.0, "under computation": 0.0},
    }


def test_waits_are_read_off_a_trace() -> None:
    late = TRACED_STEPS - 1
    events: dict[Worker, list[tuple[str, int, int, int, int]]] = {
        (0, 1): [
            ("F0.0", 0, 0, 9_000_000, 0),
            ("F0.0", late, 10_000_000, 13_000_000, 1_000_000),
            ("F0.1", late, 13_000_000, 16_000_000, 0),
            ("R", late, 16_000_000, 17_000_000, 0),
        ]
    }
    steps = TRACED_STEPS - TRACED_STEPS // 2
    found = waits_of(json.loads(chrome_trace(events))["traceEvents"])
    assert found == {
        "0:1": pytest.approx({"ops": 6 / steps, "waited": 1 / steps, "beyond shortest": 1 / steps})
    }


def test_buckets_begin_with_the_last_parameters() -> None:
    parameters = [torch.empty(count) for count in (1, 2, 3, 9, 1)]
    sizes = [[each.numel() for each in group] for group in grouped(parameters, most=16)]
    assert sizes == [[1], [9], [3], [2, 1]]


def test_jobs_and_failures_are_as_the_compiler_reads_them() -> None:
    text = job_text(
        {"stages": [{"activation_bytes": 1000}, {"activation_bytes": 2048}]}, "decouple", "profile.json"
    )
    assert "capacity = 8 KiB" in text
    assert [failed_text(plan) for plan in PLANS] == ["", "", "1:1", "0:0,1:1"]
    assert all(
        {stage for _, stage in plan.failed} != set(range(STAGES)) or len(plan.failed) == 2 for plan in PLANS
    )


def test_programs_compile_and_torch_has_the_schedules() -> None:
    from torch.distributed import pipelining

    for size in SIZES.values():
        compile(program_text(size.sizes), "program", "exec")
    for schedule in SCHEDULES:
        assert hasattr(pipelining, schedule.name)
        chunks = sorted(chunk for chunks in schedule.chunks for chunk in chunks)
        assert chunks == list(range(len(chunks)))


def test_channels_share_a_quarter_of_the_multiprocessors() -> None:
    assert [blocks(channels, 16) for channels in (2, 4, 8)] == [2, 1, 1]
    assert blocks(2, 132) == 8


def test_a_table_has_a_head() -> None:
    assert markdown([("a", "b"), ("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
