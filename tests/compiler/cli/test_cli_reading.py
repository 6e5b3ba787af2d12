"""`recyclec show`, `diff` and `verify`, end to end on a small bundle."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.text import parse_level
from recycle_runtime.plan.bundle import Bundle

Recyclec = Callable[..., tuple[int, str, str]]


def test_show_picks_the_plan_for_none(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("show", small_bundle)
    assert (code, words) == (0, "")
    assert data.startswith(
        "small: 2 stages, 3 pipelines, 2 micro-batches each; failed: none\nperiod 8 slots, optimal"
    )


def test_show_names_the_workers_that_failed(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("show", small_bundle, "--failed", "0:1", "--format", "json")
    plan = json.loads(data)
    assert (code, words, plan["failed"], plan["period"]) == (0, "", [[0, 1]], 10)
    assert all(op["worker"] != [0, 1] for op in plan["ops"])


def test_show_tells_which_worker_to_move(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("show", small_bundle, "--failed", "0:0", "--format", "json")
    assert (code, json.loads(data)["failed"]) == (0, [[0, 1]])
    assert words == (
        "recyclec: the bundle plans 1 failure as 1 on stage 1; to use this plan, worker 0:1 becomes 0:0 and "
        "all others stay; or run `recyclec plan` for exactly this pattern\n"
    )


def test_show_moves_several_workers_to_different_places(small_bundle: str, recyclec: Recyclec) -> None:
    _, data, words = recyclec("show", small_bundle, "--failed", "1:0,2:0", "--format", "json")
    assert json.loads(data)["failed"] == [[0, 1], [2, 0]]
    assert "worker 0:1 becomes 1:0 and all others stay" in words


@pytest.mark.parametrize("command", ["show", "plan"])
def test_a_stage_without_survivors(
    small_bundle: str, small_job: str, recyclec: Recyclec, command: str
) -> None:
    source = small_bundle if command == "show" else small_job
    words = "recyclec: error: no plan for small: stage 1 has no live worker: all 3 of its workers failed\n"
    assert recyclec(command, source, "--failed", "0:1,1:1,2:1") == (3, "", words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--failures", "3"], "no plan for 3 failures: the bundle plans for 0 to 2"),
        (["--failed", "0:0,0:1,1:1"], "no plan for 3 failures: the bundle plans for 0 to 2"),
        (["--failed", "3:1"], "worker 3:1 does not exist: pipelines are 0 to 2, stages 0 to 1"),
    ],
)
def test_plans_that_are_not_in_the_bundle(
    small_bundle: str, recyclec: Recyclec, options: list[str], words: str
) -> None:
    code, data, said = recyclec("show", small_bundle, *options)
    assert (code, data) == (2, "")
    assert said.startswith(f"recyclec: error: {words}")


def test_texts_parse_back(small_bundle: str, recyclec: Recyclec) -> None:
    program = parse_level(recyclec("show", small_bundle, "--failures", "2", "--format", "asm")[1])
    schedule = parse_level(recyclec("show", small_bundle, "--failures", "2", "--format", "schedule")[1])
    assert isinstance(program, Streams)
    assert isinstance(schedule, Schedule)
    assert program.failed == schedule.failed


def test_show_into_a_file(small_bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    code, data, _ = recyclec("show", small_bundle, "-o", str(tmp_path / "grid.txt"), "--width", "40")
    assert (code, data) == (0, "")
    assert (tmp_path / "grid.txt").read_text() == recyclec("show", small_bundle, "--width", "40")[1]


def test_an_svg_that_is_too_narrow(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("show", small_bundle, "--format", "svg", "--width", "10")
    assert (code, data) == (2, "")
    assert words == "recyclec: error: --width must be from 300 to 100000 pixels for an svg, got 10\n"


def test_diff_of_bundles(small_bundle: str, small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    assert recyclec("diff", small_bundle, small_bundle) == (
        0,
        "plan for 0 failures: same\nplan for 1 failure: same\nplan for 2 failures: same\n",
        "",
    )
    other = str(tmp_path / "other.plan")
    recyclec("compile", small_job, "-o", other, "--failures", "0", "--techniques", "none")
    code, data, _ = recyclec("diff", small_bundle, other)
    assert code == 1
    assert data.startswith(
        f"plan for 1 failure: only in {small_bundle}\nplan for 2 failures: only in {small_bundle}\n"
    )
    assert "plan for 0 failures: different\n" in data
    assert "  period       8 -> 10 slots (+25.0 %)\n" in data
    code, data, _ = recyclec("diff", small_bundle, other, "--json")
    found = json.loads(data)
    assert (code, found["same"], found["only_before"], found["only_after"]) == (1, False, [1, 2], [])
    assert found["plans"][0]["claims"]["period"] == [8, 10]


def test_diff_of_texts(small_bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    text = tmp_path / "plan.txt"
    recyclec("show", small_bundle, "--failures", "0", "--format", "schedule", "-o", str(text))
    assert recyclec("diff", str(text), str(text))[0] == 0
    one = tmp_path / "one.txt"
    recyclec("show", small_bundle, "--failures", "1", "--format", "schedule", "-o", str(one))
    code, data, _ = recyclec("diff", str(text), str(one))
    assert code == 1
    assert data.startswith(
        "plan for 0 failures -> plan for 1 failure: different\n  failed       none -> 2:1\n"
    )
    text.write_text(text.read_text() + "nonsense\n")
    code, data, words = recyclec("diff", str(text), small_bundle)
    assert (code, data) == (1, "")
    line = len(text.read_text().splitlines())
    assert words.startswith(f"{text}:{line}:1: error[schedule-text]: not a line of a schedule: unknown word ")


def test_diff_of_something_else(small_bundle: str, small_job: str, recyclec: Recyclec) -> None:
    words = "neither a bundle nor a schedule text; a trace is JSON and comes second"
    assert recyclec("diff", small_bundle, small_job) == (1, "", f"recyclec: error: {small_job}: {words}\n")


def test_verify(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("verify", small_bundle)
    assert code == 0
    assert [line.partition(", period")[0].split(",")[0] for line in data.splitlines()] == [
        "plan 0: ok",
        "plan 1: ok",
        "plan 2: ok",
    ]
    content = Bundle.read(small_bundle).content_hash
    assert words == (
        f"recyclec: {small_bundle}: 3 plans for 0 to 2 failures, every rule holds\n"
        f"recyclec: {small_bundle}: content hash {content}\n"
    )


@pytest.mark.parametrize(
    ("options", "checked", "missing"),
    [
        (["plan", "--failed", "0:1"], "1 plan for 1 failure", "0 and 2 failures"),
        (["plan", "--failed", "0:1,1:0"], "1 plan for 2 failures", "0 to 1 failures"),
        (["compile", "--failures", "1"], "2 plans for 0 to 1 failures", "2 failures"),
        (["compile", "--failures", "3"], "4 plans for 0 to 3 failures", None),
    ],
)
def test_verify_says_which_failures_have_plans(
    small_job: str,
    recyclec: Recyclec,
    tmp_path: Path,
    options: list[str],
    checked: str,
    missing: str | None,
) -> None:
    """A bundle without a plan for 0 failures was told from a whole one by nothing but a number."""
    path = str(tmp_path / "some.plan")
    assert recyclec(options[0], small_job, *options[1:], "-o", path)[0] == 0
    code, _, words = recyclec("verify", path)
    told = [f"recyclec: {path}: {checked}, every rule holds"]
    if missing is not None:
        asked = "the job asks for plans for 0 to 2 failures, which `recyclec compile` makes"
        told.append(f"recyclec: {path}: no plan for {missing}; {asked}")
    assert (code, words.splitlines()[:-1]) == (0, told)


@pytest.mark.parametrize("command", ["show", "verify", "diff"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_damaged_files_are_refused_in_a_sentence(
    small_bundle: str, recyclec: Recyclec, tmp_path: Path, command: str, damage: str
) -> None:
    content = Path(small_bundle).read_bytes()
    damaged = {
        "truncated": content[:-5],
        "flipped": content[:40] + bytes([content[40] ^ 1]) + content[41:],
        "empty": b"",
        "text": b"job small {}\n",
    }
    path = tmp_path / "damaged.plan"
    path.write_bytes(damaged[damage])
    argv = [command, str(path)] + ([small_bundle] if command == "diff" else [])
    code, data, words = recyclec(*argv)
    assert (code, data) == (1, "")
    assert words.startswith(f"recyclec: error: {path}: ")
    assert len(words.splitlines()) == 1
