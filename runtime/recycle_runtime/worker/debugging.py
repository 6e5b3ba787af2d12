"""A debugger in one worker process of a job: it has the terminal, and breakpoints count there alone."""

import os
import pdb
import signal
import sys
from types import FrameType
from typing import Any

_DEBUGGERS = ("/pdb.py", "/cmd.py", "/bdb.py")


def keep_terminal() -> None:
    """In the worker that is debugged: stdin is the terminal that the job was started from, and ctrl-C opens
    the debugger where the worker is."""
    sys.stdin = os.fdopen(os.dup(0))
    signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if frame is None or frame.f_code.co_filename.endswith(_DEBUGGERS):
        # At its prompt: the line that was typed is dropped.
        raise KeyboardInterrupt
    debugger = pdb.Pdb()
    debugger.message("interrupted")
    debugger.set_trace(frame)


def pass_breakpoints() -> None:
    """In all other workers: stdin is empty, and breakpoints are passed by."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    sys.breakpointhook = _pass_by
    pdb.set_trace = _pass_by


def look_at(error: BaseException) -> None:
    """Open the debugger where an error was raised."""
    cause = error.__cause__ or error
    print(f"{type(cause).__name__}: {cause}", file=sys.stderr, flush=True)
    pdb.post_mortem(cause.__traceback__)


def _pass_by(*_: Any, **__: Any) -> None:
    """Instead of a breakpoint."""
