"""Commands that read plans, on the bundle of a job in layers: which cut they take, and what they say of it.

The job has 6 layers on 8 workers. Its own cut is 3x4,3x4; the fastest plans are

    0 failures    2x2,2x2,2x4    50 slots, against 63 under the own cut
    1 failure     3x3,3x4        63, the own cut
    2 failures    5x4,1x2        73, against 75
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_level

Recyclec = Callable[..., tuple[int, str, str]]

NO_PLAN = (
    "no plan for 8 workers with every layer on 2 or more, under one cut or, if groups were planned, in two "
    "groups,"
)
HEAD_OF_RECUT = f"""\
layered: 6 layers in 3 stages on 8 workers, another cut than the job starts with; 16 micro-batches
layers x workers of each stage: 2x2 2x2 2x4
period 50 slots, optimal (load of stage 0); makespan 54 slots; adaptive + decouple + stagger
{NO_PLAN} is faster than 50 slots
"""
HEAD_OF_OWN = f"""\
layered: 2 stages, 4 pipelines, 4 micro-batches each; failed: none
layers x workers of each stage: 3x4 3x4, as the job cuts them
period 63 slots, optimal (load of stage 1); makespan 63 slots; adaptive + decouple + stagger
{NO_PLAN} is faster than 50 slots
"""


def show(recyclec: Recyclec, bundle: str, *options: str) -> str:
    code, data, _ = recyclec("--quiet", "show", bundle, *options)
    assert code == 0
    return data


def test_without_options_it_says_what_is_seen(layered_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("show", layered_bundle)
    head, rows, legend = data.partition("\n\n")[0] + "\n", data.split("\n\n")[1:4], data.split("\n\n")[-1]
    assert (code, head) == (0, HEAD_OF_RECUT)
    assert words == (
        "recyclec: here the 6 layers of the model are cut into stages otherwise, as 2 + 2 + 2 instead of "
        "3 + 3: a step takes 50 slots instead of 63 with 8 workers; `--cut own` gives the plan for the cut "
        "that the job starts with\n"
    )
    # Cells of the grid that have no worker are no failed workers: they are not there.
    names = [[line.split()[0] for line in group.splitlines()] for group in rows]
    assert names == [["worker", "0:0", "1:0"], ["0:1", "1:1"], ["0:2", "1:2", "2:2", "3:2"]]
    assert "failed" not in data
    assert "worker r:s is number r of those that hold stage s under this cut" in legend


@pytest.mark.parametrize(
    ("options", "period", "cut", "hosts"),
    [
        ((), 50, [2, 2, 2], [2, 2, 4]),
        (("--failures", "1"), 63, [3, 3], [3, 4]),
        (("--failures", "2"), 73, [5, 1], [4, 2]),
        (("--failures", "2", "--cut", "fastest"), 73, [5, 1], [4, 2]),
        (("--failures", "2", "--cut", "own"), 75, [3, 3], [2, 4]),
        (("--failed", "0:0"), 63, [3, 3], [3, 4]),
        (("--cut", "1"), 73, [5, 1], [4, 2]),
        (("--layout", "5x4,1x2"), 73, [5, 1], [4, 2]),
        (("--layout", "2x2*2 2x4"), 50, [2, 2, 2], [2, 2, 4]),
        (("--layout", "3x4,3x4"), 63, [3, 3], [4, 4]),
        (("--layout", "3x4*2", "--failures", "0"), 63, [3, 3], [4, 4]),
        (("--layout", "3x3 3x4 (own cut)"), 63, [3, 3], [3, 4]),
        (("--layout", "3x3,3x4", "--failures", "0"), 63, [3, 3], [3, 4]),
        (("--cut", "1", "--failures", "0"), 73, [5, 1], [4, 2]),
        (("--cut", "0", "--failures", "1"), 98, [2, 2, 2], [1, 1, 3]),
    ],
)
def test_which_plan_is_shown(
    layered_bundle: str,
    recyclec: Recyclec,
    options: tuple[str, ...],
    period: int,
    cut: list[int],
    hosts: list[int],
) -> None:
    plan = json.loads(show(recyclec, layered_bundle, *options, "--format", "json"))
    assert (plan["period"], plan["cut"], plan["hosts"]) == (period, cut, hosts)


def test_the_table_of_compile_names_the_same_plans(
    layered_job: str, layered_bundle: str, recyclec: Recyclec
) -> None:
    _, data, _ = recyclec("--quiet", "compile", layered_job, "--json", "--jobs", "1")
    for row in json.loads(data)["plans"]:
        failures = ("--failures", str(row["failures"]))
        plan = json.loads(show(recyclec, layered_bundle, *failures, "--format", "json"))
        same = ("period", "makespan", "lower_bound", "cut", "hosts", "workers", "stages", "bound_over_cuts")
        assert {name: plan[name] for name in same} == {name: row[name] for name in same}


def test_json_says_which_layers_are_where(layered_bundle: str, recyclec: Recyclec) -> None:
    plan = json.loads(show(recyclec, layered_bundle, "--format", "json"))
    assert (plan["layers"], plan["own_cut"], plan["workers"]) == ([[0, 2], [2, 4], [4, 6]], False, 8)
    assert {op["chunk"] for op in plan["ops"]} == {0, 1, 2}
    assert json.loads(show(recyclec, layered_bundle, "--cut", "own", "--format", "json"))["own_cut"] is True


def test_the_own_cut_is_shown_as_ever(layered_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("show", layered_bundle, "--cut", "own")
    assert (code, words, data.startswith(HEAD_OF_OWN)) == (0, "", True)


def test_a_schedule_under_another_cut_reads_back(layered_bundle: str, recyclec: Recyclec) -> None:
    schedule = parse_level(show(recyclec, layered_bundle, "--format", "schedule"))
    assert isinstance(schedule, Schedule)
    assert (schedule.job.cut, schedule.claims.bound_over_cuts) == ((2, 2, 2), 50_000)
    assert list(schedule.verify()) == []


def test_a_trace_names_the_layout(layered_bundle: str, recyclec: Recyclec) -> None:
    trace = json.loads(show(recyclec, layered_bundle, "--format", "trace"))
    assert trace["otherData"]["layout"] == "2x2,2x2,2x4"


def test_torch_takes_the_own_cut_alone(layered_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("--quiet", "show", layered_bundle, "--format", "csv")
    assert (code, data) == (1, "")
    assert words.startswith(
        f"recyclec: error: {layered_bundle}: the stages of this plan have different numbers of workers"
    )
    assert show(recyclec, layered_bundle, "--format", "csv", "--cut", "own").startswith("0F0,0F1,")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--cut", "2"), "no cut 2: {} has cuts 0 to 1"),
        (
            ("--layout", "4x4,2x4"),
            "no plan for --layout 4x4,2x4: {} has 3x4,3x4; 3x3,3x4; 3x2,3x4; 2x2,2x2,2x4; 5x4,1x2\n",
        ),
        (
            ("--layout", "3x4*2", "--failures", "1"),
            "no plan for 1 failure under --layout 3x4,3x4: it is for 8 workers, and 7 are left",
        ),
        (
            ("--failed", "0:0", "--cut", "1"),
            "--failed names workers of the job's own cut: leave out --cut and",
        ),
        (("--cut", "0", "--failures", "2"), "no plan for 2 failures under cut 0: it is for 8 workers, and 6"),
    ],
)
def test_a_cut_that_is_not_there(
    layered_bundle: str, recyclec: Recyclec, options: tuple[str, ...], sentence: str
) -> None:
    code, data, words = recyclec("show", layered_bundle, *options)
    assert (code, data) == (2, "")
    assert sentence.format(layered_bundle) in words


def test_a_bundle_of_whole_stages_has_no_other_cuts(small_bundle: str, recyclec: Recyclec) -> None:
    assert show(recyclec, small_bundle) == show(recyclec, small_bundle, "--cut", "own")
    sentence = f"recyclec: error: no cut 0: {small_bundle} has no plans under other cuts\n"
    assert recyclec("show", small_bundle, "--cut", "0") == (2, "", sentence)
    code, _, words = recyclec("show", small_bundle, "--layout", "1x2,1x2")
    assert code == 2
    assert words.endswith(f"no plan for --layout 1x2,1x2: {small_bundle} has no plan that has a layout\n")


@pytest.mark.parametrize("command", ["show", "explain"])
def test_the_only_plan_of_a_file_has_its_layout(
    command: str, layered_job: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    path = str(tmp_path / "x.plan")
    assert recyclec("plan", layered_job, "--layout", "2x2,2x2,2x4", "-o", path)[0] == 0
    only = recyclec(command, path)
    assert only[0] == 0
    assert recyclec(command, path, "--layout", "2x2*2 2x4") == only


def test_retime_keeps_to_the_own_cut_unless_asked(
    layered_job: str, layered_bundle: str, recyclec: Recyclec
) -> None:
    for options, period in (((), 63_000), (("--cut", "fastest"), 50_000), (("--cut", "1"), 73_000)):
        code, data, _ = recyclec("retime", layered_bundle, "--times", layered_job, "--json", *options)
        row = json.loads(data)
        assert (code, row["planned_ticks"], row["step_ticks"]) == (0, period, period)


def test_retime_takes_the_times_of_layers(
    layered_job: str, layered_bundle: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    slower = tmp_path / "slower.job"
    slower.write_text(Path(layered_job).read_text().replace("forward = [1,", "forward = [2,"))
    _, data, _ = recyclec("retime", layered_bundle, "--times", str(slower), "--json", "--cut", "0")
    # Stage 0, with layers 0 and 1, is the bottleneck: each of its 8 forwards takes a slot more.
    assert json.loads(data)["step_ticks"] == 58_000


def test_retime_cuts_the_layers_as_the_plan_has_them(
    layered_job: str, layered_bundle: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    """The job of the times starts elsewhere, or nowhere yet; the plan says where its layers are."""
    text = Path(layered_job).read_text()
    for parallel, batch in (
        ("pipeline = 2  data = 4  cut = [1, 5]", "microbatches = 4"),
        ("workers = 8", "microbatches = 16"),
    ):
        other = tmp_path / "other.job"
        changed = text.replace("pipeline = 2  data = 4  cut = [3, 3]", parallel)
        other.write_text(changed.replace("microbatches = 4", batch))
        code, data, _ = recyclec("retime", layered_bundle, "--times", str(other), "--json")
        assert (code, json.loads(data)["step_ticks"]) == (0, 63_000)


def test_retime_needs_layers(layered_bundle: str, small_job: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("retime", layered_bundle, "--times", small_job, "--cut", "0")
    assert (code, data) == (1, "")
    assert words == (
        f"recyclec: error: {small_job}: times of whole stages; the plan of {layered_bundle} is under another "
        "cut, and needs a job in layers\n"
    )
