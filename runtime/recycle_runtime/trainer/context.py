"""Context of a script: set before it begins, found by its trainer."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.worker.lifecycle import Life
from recycle_runtime.worker.requests import Requests


@dataclass(slots=True)
class Context:
    """A worker process that runs a script."""

    life: Life
    requests: Requests
    script: Path
    has_trainer: bool = False


_current: Context | None = None


def enter(context: Context) -> None:
    """A script is about to run in this process."""
    global _current
    _current = context


def take_context() -> Context:
    """For the one trainer of a script."""
    if _current is None:
        # Nobody is there to catch an error and say it without a traceback.
        words = shlex.join(sys.argv if sys.argv[0].endswith(".py") else ["SCRIPT.py"])
        raise SystemExit(
            "recycle.Trainer trains with the workers of a plan, which says how many micro-batches a step "
            f"has: start this script with `recycle-run local PLAN {words}`, and with --debug 0:0 before its "
            "name for a debugger in one worker"
        )
    if _current.has_trainer:
        raise ProgramError("a script has one recycle.Trainer, and this is the second")
    _current.has_trainer = True
    return _current
