"""`recycle-run streams`: what a bundle holds, read with the standard library alone."""

from pathlib import Path

import pytest

from recycle_compiler.cli.main import main as compile_main
from recycle_compiler.ir.bundled import layout_name
from recycle_runtime.cli.main import main
from recycle_runtime.plan.bundle import Bundle
from tests.support.grouped import FIVE, write_grouped


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_plans_of_a_bundle(small_bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "streams", small_bundle) == (
        0,
        "plan 0  0 failed (none), 6 workers live\n"
        "plan 1  1 failed (2:1), 5 workers live\n"
        "plan 2  2 failed (2:0 2:1), 4 workers live\n",
        "",
    )


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The job and its bundle."""
    return write_grouped(tmp_path_factory.mktemp("grouped"))


def test_plans_under_other_cuts_and_in_groups(
    grouped: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    job, plan = grouped
    code, data, _ = run(capsys, "streams", plan)
    lines = data.splitlines()
    bundle = Bundle.read(plan)
    assert code == 0 and lines[0] == "plan 0  0 failed (none), 8 workers live"
    assert len(lines) == len(bundle.plans) + sum(len(recut.plans) for recut in bundle.recuts)
    for cut, recut in enumerate(bundle.recuts):
        live = recut.stages * recut.pipelines - len(recut.plans[0].failed)
        (line,) = (line for line in lines if line.startswith(f"cut {cut}, plan 0  "))
        workers = "1 worker" if live == 1 else f"{live} workers"
        assert line.endswith(f"  {workers} as {layout_name(bundle, recut, 0)}")
    assert any(line.endswith(f"5 workers as {FIVE}") for line in lines)
    # Cells of a layout that have no worker have not failed.
    alone = str(Path(plan).with_name("five.plan"))
    assert compile_main(["plan", job, "--layout", FIVE, "-o", alone]) == 0
    assert run(capsys, "streams", alone) == (0, f"plan 0  5 workers as {FIVE}\n", "")


def test_workers_under_another_cut(grouped: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The cut of a number, and the fastest, have the workers and instructions that `recyclec show` has."""
    plan = grouped[1]
    bundle = Bundle.read(plan)
    (five,) = (cut for cut, recut in enumerate(bundle.recuts) if layout_name(bundle, recut, 0) == FIVE)
    for options in (("--cut", str(five)), ("--cut", "fastest", "--failures", "3")):
        code, data, _ = run(capsys, "streams", plan, *options)
        names = [line.split()[1] for line in data.splitlines()]
        assert (code, names) == (0, ["0:0", "1:0", "0:1", "1:1", "0:2"])
        shown: list[str] = []
        for name in names:
            code, data, _ = run(capsys, "streams", plan, *options, "--worker", name)
            assert code == 0
            shown.append(data)
        assert compile_main(["--quiet", "show", plan, *options, "--format", "asm"]) == 0
        assert capsys.readouterr().out.endswith("".join(shown))
    own = run(capsys, "streams", plan, "--failures", "3")
    assert own == run(capsys, "streams", plan, "--failures", "3", "--cut", "own")
    assert len(own[1].splitlines()) == 5 and all(":0" in line for line in own[1].splitlines())


def test_a_cut_that_is_not_there(grouped: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    plan = grouped[1]
    last = len(Bundle.read(plan).recuts) - 1
    words = f"recycle-run: error: no cut 99: {plan} has cuts 0 to {last}\n"
    assert run(capsys, "streams", plan, "--cut", "99") == (2, "", words)
    code, data, said = run(capsys, "streams", plan, "--cut", "0", "--failures", "8")
    assert (code, data) == (2, "")
    assert "no plan for 8 failures under cut 0: it is for " in said and said.endswith(", and 0 are left\n")


def test_workers_of_a_plan(small_bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, data, _ = run(capsys, "streams", small_bundle, "--failures", "1")
    assert code == 0
    assert [line.split()[1] for line in data.splitlines()] == ["0:0", "1:0", "2:0", "0:1", "1:1"]


def test_instructions_of_a_worker(small_bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, data, _ = run(capsys, "streams", small_bundle, "--failures", "1", "--worker", "1:1")
    assert code == 0
    assert data.startswith("worker 1:1\n    0  ")
    assert "forward" in data


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--failures", "7"], "no plan for 7 failures: the bundle plans for 0, 1, 2"),
        (
            ["--failures", "1", "--worker", "2:1"],
            "worker 2:1 has no stream in this plan: it failed or does not exist",
        ),
        (["--cut", "0"], "no cut 0: {bundle} has no plans under other cuts"),
        (["--worker", "x"], "--worker must be like 0:2 (pipeline:stage, from 0), got 'x'"),
    ],
)
def test_what_is_not_there(
    small_bundle: str, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    said = f"recycle-run: error: {words.format(bundle=small_bundle)}\n"
    assert run(capsys, "streams", small_bundle, *options) == (2, "", said)


def test_files_that_are_no_bundle(small_job: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, words = run(capsys, "streams", small_job)
    assert (code, words) == (
        1,
        f"recycle-run: error: {small_job}: not a bundle: it does not begin like one\n",
    )
    code, _, words = run(capsys, "streams", str(tmp_path / "none"))
    assert (code, words) == (1, f"recycle-run: error: {tmp_path / 'none'}: no such file or directory\n")
