"""Pages of plans: their columns are the plan, and names are text."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule, WorkEdge
from recycle_compiler.viz.plan_page import DrawnRun, PageSide, document_of, plan_page
from recycle_compiler.viz.shell import embedded


def rows_of(document: dict[str, Any]) -> list[tuple[tuple[int, int], str, int, int, float, float]]:
    """Rows that the script of the page makes of its columns."""
    rows: list[tuple[tuple[int, int], str, int, int, float, float]] = []
    workers = [tuple(worker) for group in document["groups"] for worker in group]
    op = 0
    for worker, count in zip(workers, document["counts"], strict=True):
        time = 0.0
        for _ in range(count):
            kind, duration = document["kind"][op], document["duration"]
            chunk = worker[1] if document["chunk"] is None else document["chunk"][op]
            length: float = duration[kind][chunk] if "F" in duration else duration[op]
            start: float = time + document["gap"][op]
            time = start + length
            rows.append((worker, kind, document["pipeline"][op], document["microbatch"][op], start, time))
            op += 1
    return rows


def planned(schedule: Schedule) -> set[tuple[tuple[int, int], str, int, int, int, int]]:
    pipelines = schedule.job.pipelines
    return {
        (
            (op.worker % pipelines, op.worker // pipelines),
            op.kind.name,
            op.pipeline,
            op.microbatch,
            start,
            end,
        )
        for op, start, end in schedule.rows()
    }


def test_columns_are_the_plan(tiny: Schedule) -> None:
    document = document_of(tiny)
    rows = rows_of(document)
    assert len(rows) == len(tiny.ops) and set(rows) == planned(tiny)
    assert document["failed"] == [[1, 1]] and document["failures"] == 1
    assert document["period"] == tiny.claims.period == 13 * document["ticks_per_unit"]


def test_durations_that_are_not_the_jobs(tiny: Schedule) -> None:
    slower = replace(tiny, ops=replace(tiny.ops, duration=tiny.ops.duration // 2))
    document = document_of(slower)
    assert isinstance(document["duration"], list)
    assert set(rows_of(document)) == planned(slower)


def test_a_step_of_a_run(tiny: Schedule) -> None:
    start, end = tiny.start.astype(np.float64) + 0.25, tiny.end.astype(np.float64) + 0.5
    run = DrawnRun(start, end, 14_000.0, "step 3 took 14 ms")
    document = document_of(tiny, run=run)
    assert document["measured"] and document["period"] == 14_000.0
    assert document["lower_bound"] == tiny.claims.period
    found = sorted(row[4:] for row in rows_of(document))
    expected = sorted(zip(start.tolist(), end.tolist(), strict=True))
    assert np.allclose(np.array(found), np.array(expected), atol=1e-2)


def test_added_edges_are_between_ops_as_the_page_counts_them(tiny: Schedule) -> None:
    edge = WorkEdge((OpKind.F, 0, 0, 0), (OpKind.F, 1, 1, 1), 5)
    document = document_of(replace(tiny, edges=(edge,)))
    rows = rows_of(document)
    ((before, after, lag),) = document["edges"]
    assert (rows[before][:4], rows[after][:4], lag) == (((0, 0), "F", 0, 0), ((0, 1), "F", 1, 1), 5)


def test_names_are_text(tiny: Schedule) -> None:
    name = "</script><script>alert(1)</script>&"
    named = replace(tiny, job=replace(tiny.job, name=name))
    text = plan_page(name, [PageSide("a", (document_of(named),))])
    assert text.count("<script") == 2 and "alert(1)</script>" not in text
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["title"] == data["sides"][0]["plans"][0]["job"] == name


def test_data_is_json_without_html() -> None:
    value = {"a": "<b> & \u2028 </c>"}
    text = embedded(value)
    assert json.loads(text) == value
    assert not re.search(r"[<>&\u2028]", text)
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded({"a": float("nan")})


def test_workers_are_named_once(tiny: Schedule) -> None:
    workers = [Worker(*worker) for group in document_of(tiny)["groups"] for worker in group]
    assert len(workers) == len(set(workers)) == tiny.job.workers
