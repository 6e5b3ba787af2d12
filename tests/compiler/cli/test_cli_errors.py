"""Ends of a command: exit codes, one sentence for users, a traceback only for bugs, whole files."""

import os
import stat
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.cli import main as cli
from recycle_compiler.cli.commands import check, compile
from recycle_compiler.diagnostics import CompileError, Diagnostic, Span
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.passes.canonicalize_schedule import CanonicalizeSchedule
from recycle_compiler.passes.insert_transfers import InsertTransfers
from recycle_compiler.passes.pipeline import PassError
from recycle_compiler.planner.worker_processes import ProcessError
from recycle_runtime.cli.output import BUG, Output, UserError
from recycle_runtime.files import write_whole

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[[Namespace, Output], int]


@pytest.fixture
def command_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Puts a function in place of what commands do."""

    def replace(run: Run) -> None:
        for command in (check, compile):
            monkeypatch.setattr(command, "run", run)

    return replace


def raising(error: BaseException) -> Run:
    def run(arguments: Namespace, output: Output) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UserError("x.plan: not a bundle"), 1, "recyclec: error: x.plan: not a bundle\n"),
        (UserError("no such worker", 2), 2, "recyclec: error: no such worker\n"),
        (
            FileNotFoundError(2, "No such file or directory", "a.job"),
            1,
            "recyclec: error: a.job: no such file or directory\n",
        ),
        (PermissionError(13, "Permission denied", "b/c"), 1, "recyclec: error: b/c: permission denied\n"),
        (
            CompileError(
                [Diagnostic("range", "stages must be at least 1, got 0", Span(1, 3, 4))], "  0\n", "a.job"
            ),
            1,
            "a.job:1:3: error[range]: stages must be at least 1, got 0\n  0\n  ^\n",
        ),
        (
            CompileError([Diagnostic("dead", "no live worker", no_plan=True)]),
            3,
            "error[dead]: no live worker\n",
        ),
        (KeyboardInterrupt(), 130, "recyclec: error: interrupted, nothing was written\n"),
    ],
)
def test_users_get_a_sentence(
    command_is: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    words: str,
) -> None:
    command_is(raising(error))
    assert cli.main(["--quiet", "check", "a.job"]) == code
    assert capsys.readouterr() == ("", words)


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError("unable to allocate 9 TiB"), "there is not enough memory"),
        (ProcessError("a planning process was ended by SIGKILL"), "a planning process was ended by SIGKILL"),
    ],
)
def test_a_machine_that_is_too_small(
    command_is: Callable[[Run], None], capsys: pytest.CaptureFixture[str], error: Exception, what: str
) -> None:
    command_is(raising(error))
    assert cli.main(["compile", "a.job", "-o", "x.plan", "--jobs", "2"]) == BUG
    hint = "if memory ran out, plan with fewer processes than `--jobs 2`, or use a machine that has more"
    assert capsys.readouterr().err == f"recyclec: error: {what}, nothing was written\n\nhint: {hint}\n"
    assert cli.main(["compile", "a.job", "-o", "x.plan", "--jobs", "1"]) == BUG
    assert "--jobs" not in capsys.readouterr().err


def test_a_process_that_crashes_is_a_bug(
    command_is: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command_is(raising(ProcessError("a planning process was ended by SIGSEGV", crashed=True)))
    assert cli.main(["compile", "a.job", "-o", "x.plan"]) == BUG
    words = capsys.readouterr().err
    assert "ended by SIGSEGV" in words
    assert "this is a bug in recyclec" in words


def test_a_bug_keeps_its_traceback(
    command_is: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command_is(raising(AssertionError("split-backward left a bad graph")))
    assert cli.main(["check", "a.job"]) == BUG
    words = capsys.readouterr().err
    assert "Traceback" in words
    assert "AssertionError: split-backward left a bad graph" in words
    assert words.endswith(
        "this is a bug in recyclec, not in your input; please report it with the lines above\n"
    )


def test_a_pass_that_crashes_leaves_a_reproducer(
    command_is: Callable[[Run], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tiny: Schedule,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command_is(raising(PassError("crashed", tiny, (CanonicalizeSchedule(),))))
    assert cli.main(["check", "a.job"]) == BUG
    (reproducer,) = tmp_path.iterdir()
    advice = f"please send {reproducer} along; `recyclec reproduce {reproducer}` crashes in the same way"
    assert capsys.readouterr().err.splitlines()[-1] == f"recyclec: error: {advice}"
    monkeypatch.undo()
    assert cli.main(["reproduce", str(reproducer)]) == 0
    assert capsys.readouterr().out.startswith("schedule\njob tiny\n")
    reproducer.write_bytes(b"\xff\xfe")
    assert cli.main(["reproduce", str(reproducer)]) == 1
    words = capsys.readouterr().err
    assert words == f"recyclec: error: {reproducer}: not a reproducer: it is not UTF-8 text (byte 0)\n"
    reproducer.write_text("passes no-such-pass\n")
    assert cli.main(["reproduce", str(reproducer)]) == 1
    assert capsys.readouterr().err.startswith(
        f"recyclec: error: {reproducer}: not a reproducer: line 1: no pass is"
    )


def test_a_crash_while_planning_is_reproduced(
    small_job: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reproducer of a plan on demand crashes in the same pass, with the same options."""

    def crash(self: InsertTransfers, schedule: Schedule) -> Streams:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(InsertTransfers, "run", crash)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.main(["plan", small_job, "--slow", "1:1=3", "--failed", "0:0"]) == BUG
    assert "insert-transfers: RuntimeError('on purpose')" in capsys.readouterr().err
    (first,) = tmp_path.iterdir()
    passes = "passes insert-transfers assign-buffers rename-workers{failed=[0:0]}\n"
    assert first.read_text().startswith(f"{passes}schedule\n")
    assert cli.main(["reproduce", str(first)]) == BUG
    (second,) = set(tmp_path.iterdir()) - {first}
    assert second.read_text() == first.read_text()


def test_an_interrupt_after_writing_says_what_was_written(
    command_is: Callable[[Run], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(arguments: Namespace, output: Output) -> int:
        output.deliver("text", str(tmp_path / "out"))
        raise KeyboardInterrupt

    command_is(run)
    assert cli.main(["check", "a.job"]) == 130
    assert capsys.readouterr().err == f"recyclec: error: interrupted, wrote {tmp_path / 'out'}\n"


def test_quiet_keeps_words_but_not_data(
    command_is: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: Namespace, output: Output) -> int:
        output.say("a word")
        output.data("data\n")
        return 0

    command_is(run)
    assert cli.main(["--quiet", "check", "a.job"]) == 0
    assert capsys.readouterr() == ("data\n", "")
    assert cli.main(["check", "a.job"]) == 0
    assert capsys.readouterr() == ("data\n", "recyclec: a word\n")


@pytest.mark.parametrize(("argv", "variable"), [(["--no-color"], ""), ([], "1")])
def test_colour_can_be_switched_off(
    command_is: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch, argv: list[str], variable: str
) -> None:
    seen: list[bool] = []

    def run(arguments: Namespace, output: Output) -> int:
        seen.append(output.colored(sys.stdout))
        return 0

    command_is(run)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli.main(["check", "a.job"])
    monkeypatch.setenv("NO_COLOR", variable)
    cli.main([*argv, "check", "a.job"])
    assert seen == [True, False]


def test_a_closed_pipe_is_no_error() -> None:
    """`recyclec ... | head` must not complain when head has seen enough."""
    script = "import sys; from recycle_compiler.cli.main import main; sys.exit(main(['fmt', '-', '--quiet']))"
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os\nreader, writer = os.pipe()\nos.dup2(writer, 1)\nos.close(reader)\n{script}",
        ],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    source = (ROOT / "golden" / "specs" / "figure3.job").read_bytes()
    _, words = child.communicate(source)
    assert (child.returncode, words) == (141, b"")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.job"
    target.write_bytes(b"old")
    target.chmod(0o640)
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640

    def full_disk(source: str, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match=r"cannot write .*x\.job: no space left on device"):
        write_whole(target, b"newer")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("words", [["reproduce"], ["check"], ["verify"], ["diff", "a.plan"]])
def test_files_without_an_end(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`reproduce /dev/zero` read until memory was full."""
    assert cli.main([*words, "/dev/zero"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") <= 3 and "Traceback" not in said


def test_names_that_would_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("verify", "check"):
        assert cli.main([command, str(tmp_path / "\x1b[2J\x1b]0;title\x07.job")]) == 1
        said = capsys.readouterr().err
        assert "\x1b" not in said and "\x07" not in said and "\\x1b[2J" in said
