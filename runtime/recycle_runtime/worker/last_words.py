"""Report of an error that ends a worker process: where in the user's code, and during what."""

import bdb

from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.plan.work import StreamMistakeError
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.user_frames import frames_of, frames_text, user_frames
from recycle_runtime.transport.choose import DeviceStartError

_LONGEST = 2000
"""Letters of the error's own words."""
_MOST_OF_OURS = 3
"""Frames, where the user's code has no part in an error."""


def program_error_text(error: BaseException, worker: str) -> str:
    """One line: what failed in whose work, then the frames that led there: of the user's code, or ours."""
    if isinstance(error, ProgramError):
        hint = f"; {error.hint}" if error.hint else ""
        return f"worker {worker}: {error}{hint}"
    if isinstance(error, DeviceStartError):
        return f"worker {worker}: {error}"
    cause, where = error, f"worker {worker}"
    if isinstance(error, StreamError) and error.__cause__ is not None:
        cause, where = error.__cause__, error.where
    head = f"{where}: {_words(cause)}"
    seen = frames_of(cause)
    # Without any of the user's it is ours to be mended, and only these say where.
    frames = user_frames(seen) or seen[-_MOST_OF_OURS:]
    return f"{head}\n{frames_text(frames)}" if frames else head


def _words(error: BaseException) -> str:
    if isinstance(error, bdb.BdbQuit):
        return "a breakpoint was reached: run with --debug P:S to use a debugger in that worker"
    if isinstance(error, ProgramError):
        return f"{error}; {error.hint}" if error.hint else str(error)
    if isinstance(error, StreamMistakeError):
        return f"its stream in the bundle is wrong, {error}; recyclec verify says more"
    text = str(error)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
