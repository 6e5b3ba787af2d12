"""`recyclec compile`, `plan`, `check` and `fmt`, end to end on a job that is planned in a moment."""

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.passes.text import parse_reproducer

Recyclec = Callable[..., tuple[int, str, str]]

HASTY = """\
job hasty {
  parallel { pipeline = 4  data = 3 }
  batch    { microbatches = 6 }
  profile  { forward = 1  backward_input = 1  backward_weight = 1  optimizer = 3 }
  memory   { capacity = 4 }
  solver   { time_limit = 1 us }
}
"""


def test_compile_ends_with_a_table(small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    code, data, words = recyclec("compile", small_job, "-o", str(tmp_path / "x.plan"), "--jobs", "1")
    assert (code, data) == (0, "")
    header, *rows = [" ".join(line.split()) for line in words.splitlines()]
    assert header == "failures failed per stage period (slot) bound gap status vs 1F1B fault-free seconds"
    assert [row.rpartition(" ")[0] for row in rows] == [
        "0 0 0 8 8 0.0 % optimal 1.250x",
        "1 0 1 10 10 0.0 % optimal 1.000x",
        "2 1 1 10 10 0.0 % optimal 1.000x",
    ]


def test_compile_as_json(small_job: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("--quiet", "compile", small_job, "--json", "--failures", "1", "--jobs", "1")
    table = json.loads(data)
    assert (code, words, table["job"]) == (0, "", "small")
    assert all(plan.pop("seconds") >= 0 for plan in table["plans"])
    assert table["plans"][1] == {
        "failures": 1,
        "failed_per_stage": [0, 1],
        "period": 10,
        "makespan": 10,
        "lower_bound": 10,
        "gap": 0.0,
        "status": "optimal",
        "against_1f1b": 1.0,
        "cut_short": False,
    }


def test_techniques_can_be_switched_off(small_job: str, recyclec: Recyclec) -> None:
    options = ("--json", "--failures", "0", "--quiet")
    _, data, _ = recyclec("compile", small_job, *options, "--techniques", "none")
    assert json.loads(data)["plans"][0]["period"] == 10
    _, data, _ = recyclec("compile", small_job, *options, "--techniques", "decouple,stagger")
    assert json.loads(data)["plans"][0]["period"] == 8


@pytest.mark.slow
def test_several_processes_write_the_same_bytes(
    small_job: str, small_bundle: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    code, _, _ = recyclec("compile", small_job, "-o", str(tmp_path / "x.plan"), "--jobs", "2")
    assert code == 0
    assert (tmp_path / "x.plan").read_bytes() == Path(small_bundle).read_bytes()
    assert multiprocessing.active_children() == []


def unwritable(path: Path, why: str) -> str:
    return f"recyclec: error: cannot write {path}: {why}\n"


def test_where_the_bundle_goes_is_checked_before_planning(
    small_job: str, recyclec: Recyclec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recyclec("compile", small_job)[0] == 2
    code, _, words = recyclec("compile", small_job, "-o", str(tmp_path / "nowhere" / "x.plan"))
    assert (code, words) == (
        1,
        unwritable(tmp_path / "nowhere" / "x.plan", f"there is no folder {tmp_path / 'nowhere'}"),
    )
    code, _, words = recyclec("compile", small_job, "-o", str(tmp_path))
    assert (code, words) == (1, unwritable(tmp_path, "it is a folder"))

    def read_only(path: Path, mode: int) -> bool:
        return False

    monkeypatch.setattr("os.access", read_only)
    code, _, words = recyclec("compile", small_job, "-o", str(tmp_path / "x.plan"))
    assert (code, words) == (
        1,
        unwritable(tmp_path / "x.plan", f"nothing may be written in the folder {tmp_path}"),
    )


def test_no_plan_exists(small_job: str, recyclec: Recyclec) -> None:
    code, _, words = recyclec("plan", small_job, "--failed", "0:1,1:1,2:1")
    assert code == 3
    assert (
        words
        == "recyclec: error: no plan for small: stage 1 has no live worker: all 3 of its workers failed\n"
    )
    code, _, words = recyclec("compile", small_job, "--json", "--failures", "5")
    assert code == 3
    assert len(words.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("data = 3", "data = 1"), 3, "2 stages x 1 pipeline survive at most 0 failures, got 2"),
        (("failures = 2", "failures = 5"), 3, "2 stages x 3 pipelines survive at most 4 failures, got 5"),
        (("failures = 2", "failures = 100%"), 3, "2 stages x 3 pipelines survive at most 4 failures, got 6"),
        (
            ("tolerate {", "memory { capacity = 0.5 } tolerate {"),
            3,
            "one micro-batch on stage 0 needs 1, capacity is 0.5",
        ),
        (("forward = 1", "forward = 0"), 1, "forward must be more than 0, got 0"),
        (("backward_weight = 1", "backward_weight = 0"), 1, "backward_weight must be more than 0, got 0"),
        (("microbatches = 2", "microbatches = 0"), 1, "microbatches must be at least 1, got 0"),
        (("microbatches = 2", "microbatches = 9000000"), 1, "a plan may have at most 50,000,000 ops"),
    ],
)
@pytest.mark.parametrize("command", [["check"], ["compile", "--json"], ["plan", "--failed", "0:0"]])
def test_a_job_that_cannot_be_planned_is_refused_at_once(
    recyclec: Recyclec,
    small_job: str,
    tmp_path: Path,
    command: list[str],
    change: tuple[str, str],
    code: int,
    words: str,
) -> None:
    job = tmp_path / "silly.job"
    job.write_text(Path(small_job).read_text().replace(*change))
    found, data, said = recyclec(*command, str(job))
    assert (found, data) == (code, "")
    assert words in said
    assert "\nhint: " in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "changes",
    [
        (("pipeline = 2", "pipeline = 1"),),
        (("microbatches = 2", "microbatches = 1"),),
        (("data = 3", "data = 1"), ("failures = 2", "failures = 0")),
        (("failures = 2", "failures = 0"),),
        (("failures = 2", "failures = 0%"),),
        (("tolerate { failures = 2 }", ""),),
        (("tolerate {", "memory { capacity = 1 } tolerate {"),),
        (("optimizer = 1", "optimizer = 0"),),
        (("tolerate {", "solver { time_limit = 1 us } tolerate {"),),
        (("tolerate {", "techniques { } tolerate {"),),
    ],
)
def test_a_job_of_almost_nothing_has_plans_that_hold(
    recyclec: Recyclec, small_job: str, tmp_path: Path, changes: tuple[tuple[str, str], ...]
) -> None:
    text = Path(small_job).read_text()
    for change in changes:
        assert change[0] in text
        text = text.replace(*change)
    job, plan = tmp_path / "silly.job", str(tmp_path / "silly.plan")
    job.write_text(text)
    assert recyclec("compile", str(job), "-o", plan, "--jobs", "1", "--quiet") == (0, "", "")
    assert recyclec("verify", plan)[0] == 0


def test_a_plan_that_was_cut_short_says_so(recyclec: Recyclec, tmp_path: Path) -> None:
    job, plan = tmp_path / "hasty.job", str(tmp_path / "hasty.plan")
    job.write_text(HASTY)
    said = "recyclec: the time limit cut the search short; the plan is at most "
    code, data, words = recyclec("plan", str(job), "--failed", "1:2", "-o", plan)
    assert (code, data) == (0, "")
    assert words.startswith(said)
    assert recyclec("verify", plan)[0] == 0
    assert "cut short by the time limit" in recyclec("show", plan)[1]
    code, data, words = recyclec("plan", str(job), "--failed", "1:2", "--format", "json")
    assert json.loads(data)["cut_short"]
    assert words.startswith(said)
    assert recyclec("plan", str(job), "--failed", "1:2", "--quiet")[2] == ""


def test_passes_can_be_watched(small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    options = (
        "--dump-dir",
        str(tmp_path / "ir"),
        "--print-after-change",
        "--json",
        "--failures",
        "1",
        "--quiet",
    )
    code, _, words = recyclec("compile", small_job, *options)
    assert code == 0
    dumps = sorted((tmp_path / "ir" / "1-failed").iterdir())
    assert [path.name[:2] for path in dumps] == [f"{number:02}" for number in range(1, len(dumps) + 1)]
    levels = [type(parse_reproducer(path.read_text())[0]).__name__ for path in dumps]
    assert list(dict.fromkeys(levels)) == ["Target", "Graph", "Schedule", "Streams"]
    # The first pass leaves the failures as they are, since they are in normal form already.
    assert words.count("after 01 normalize-failures:\n") == 2
    assert words.count(":\nschedule\n") >= 2


def test_check(small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    code, data, words = recyclec("check", small_job)
    assert (code, data) == (0, "")
    assert words.startswith(f"recyclec: {small_job}: ok, job small with 2 stages x 3 pipelines")
    bad = tmp_path / "bad.job"
    bad.write_text(
        Path(small_job)
        .read_text()
        .replace("data = 3", "data = 0")
        .replace("microbatches = 2", "microbatches = x")
    )
    code, data, words = recyclec("check", str(bad))
    assert (code, data, words.count(": error[")) == (1, "", 2)


def test_fmt(small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    path = tmp_path / "loose.job"
    path.write_bytes(Path(small_job).read_text().replace("  ", "     ").replace("\n", "\r\n").encode())
    link = tmp_path / "link.job"
    link.symlink_to(path)
    assert recyclec("fmt", "--check", str(link))[0] == 1
    assert recyclec("fmt", str(link))[0] == 0
    assert link.is_symlink()
    assert path.read_text() == Path(small_job).read_text()
    assert recyclec("fmt", "--check", str(link)) == (0, "", "")
    assert recyclec("fmt", str(tmp_path / "nothing.job"))[0] == 1


def test_plan_for_an_exact_pattern(small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    code, data, _ = recyclec("plan", small_job, "--failed", "1:0", "--format", "json")
    assert (code, json.loads(data)["failed"]) == (0, [[1, 0]])
    path = str(tmp_path / "one.plan")
    assert recyclec("plan", small_job, "--failed", "1:0", "-o", path)[:2] == (0, "")
    assert json.loads(recyclec("show", path, "--format", "json")[1])["failed"] == [[1, 0]]
    assert recyclec("verify", path)[0] == 0
    code, _, words = recyclec("plan", small_job, "--failed", "5:5")
    assert code == 2
    assert "worker 5:5 does not exist" in words
