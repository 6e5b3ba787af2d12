"""A small job in layers, whole: its resolved text, the table of its plans, a schedule under another cut."""

import json
from collections.abc import Callable

from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import parse_job, print_job
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_level
from recycle_compiler.scheduling.search import Effort

Golden = Callable[[str, str], None]
GoldenPlan = Callable[[str, str, Effort], None]
Recyclec = Callable[..., tuple[int, str, str]]


def test_the_resolved_job(layered_job: str, golden: Golden) -> None:
    spec = load_job(layered_job).spec
    assert parse_job(print_job(spec).splitlines()) == spec
    golden("cuts/layered.txt", print_job(spec))


def test_the_table(layered_job: str, recyclec: Recyclec, golden: Golden) -> None:
    """One plan a line, but for the seconds that it took."""
    _, data, _ = recyclec("--quiet", "compile", layered_job, "--json", "--jobs", "1")
    table = json.loads(data)
    rows = [json.dumps({name: plan[name] for name in plan if name != "seconds"}) for plan in table["plans"]]
    assert [json.loads(row)["failures"] for row in rows] == [0, 1, 2]
    golden("cuts/layered.plans.jsonl", "".join(f"{row}\n" for row in rows))


def test_a_schedule_under_another_cut(
    layered_bundle: str, recyclec: Recyclec, golden_plan: GoldenPlan
) -> None:
    _, data, _ = recyclec("--quiet", "show", layered_bundle, "--format", "schedule")
    schedule = parse_level(data)
    assert isinstance(schedule, Schedule)
    assert list(schedule.verify()) == []
    # Among the schedules, where the event engine runs it too.
    golden_plan("schedules/layered-recut.txt", data, Effort())
