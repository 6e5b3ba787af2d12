"""A process that a script has forked is no worker, and ends where the script does."""

import json
import os
import sys
from pathlib import Path

import pytest

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.trainer import script
from recycle_runtime.worker.requests import Requests

FORK = """
import atexit, os, sys, warnings
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    atexit._clear()
    atexit.register(print, "the child ends")
    {does}
    print("end of the script")
else:
    open(sys.argv[1], "w").write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


def run_forking(
    does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """A script whose forked process does this; that one's exit status and output."""
    path, status = tmp_path / "train.py", tmp_path / "status"
    path.write_text(FORK.format(does=does))
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    worker = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        why = script.outcome(
            path,
            (0, 1),
            lambda: script.as_process(
                path,
                lambda: script._execute([str(path), str(status)]),  # pyright: ignore[reportPrivateUsage]
                script.atexit._run_exitfuncs,  # pyright: ignore[reportPrivateUsage]
            ),
        )
    finally:
        if os.getpid() != worker:
            os._exit(99)
    assert why is None, "what becomes of the forked process is nothing to its worker"
    out, err = capfd.readouterr()
    return json.loads(status.read_text()), out, err


@pytest.mark.parametrize(
    ("does", "status", "printed", "error"),
    [
        ("pass", 0, "end of the script\nthe child ends\n", ""),
        ("sys.exit(3)", 3, "the child ends\n", ""),
        ("sys.exit('enough')", 1, "the child ends\n", "enough\n"),
    ],
)
def test_it_ends_as_a_process_of_its_own(
    does: str,
    status: int,
    printed: str,
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_forking(does, tmp_path, monkeypatch, capfd) == (status, printed, error)


def test_its_exception_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, _, error = run_forking("raise ValueError('mine')", tmp_path, monkeypatch, capfd)
    assert status == 1
    assert error.startswith("Traceback") and error.endswith("ValueError: mine\n")
    assert "recycle_runtime" not in error


def test_it_cannot_use_the_trainer() -> None:
    requests = Requests()
    requests.leave_to_parent()
    for ask in (
        requests.begin,
        requests.end,
        lambda: requests.want(3),
        lambda: requests.make(0),
        lambda: requests.row(0),
        lambda: requests.settled(0),
        lambda: requests.save(0, 0, "folder", stays=True),
        lambda: requests.kept(1),
    ):
        with pytest.raises(ProgramError, match="a process that a script has forked cannot use its trainer"):
            ask()


def test_an_interrupt_that_a_script_raises_is_one_sentence() -> None:
    def run() -> None:
        raise KeyboardInterrupt

    why = script.outcome(Path(__file__), (1, 1), run)
    assert why is not None and "\n" not in why
    assert why.endswith(": the script of worker 1:1 was interrupted (KeyboardInterrupt)")
