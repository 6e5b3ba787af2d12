"""Plans as JSON."""

import json
from dataclasses import replace

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.viz.document import document


def test_head_of_a_plan(tiny: Schedule) -> None:
    plan = json.loads(document(tiny))
    ops = plan.pop("ops")
    assert plan == {
        "job": "tiny",
        "stages": 2,
        "pipelines": 2,
        "microbatches": 2,
        "unit": "slot",
        "memory_unit": "count",
        "techniques": ["adaptive", "decouple", "stagger"],
        "failed": [[1, 1]],
        "makespan": 13,
        "period": 13,
        "lower_bound": 13,
        "bound": "load of stage 1",
        "status": "optimal",
        "cut_short": False,
        "peak_memory": [[0, 0, 2], [1, 0, 2], [0, 1, 4]],
    }
    assert len(ops) == 3 * 2 * 2 * 2 + 2 * 3


def test_ops_name_their_worker_and_their_micro_batch(tiny: Schedule) -> None:
    ops = json.loads(document(tiny))["ops"]
    assert {
        "kind": "W",
        "pipeline": 1,
        "microbatch": 1,
        "stage": 1,
        "chunk": 1,
        "worker": [0, 1],
        "start": 12,
        "end": 13,
    } in ops
    assert {"kind": "O", "stage": 1, "chunk": 1, "worker": [0, 1], "start": 13, "end": 14} in ops


def test_times_that_are_not_whole_are_decimal(tiny: Schedule) -> None:
    plan = json.loads(document(replace(tiny, claims=replace(tiny.claims, makespan=12_500))))
    assert plan["makespan"] == 12.5
