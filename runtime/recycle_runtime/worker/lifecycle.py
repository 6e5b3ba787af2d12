"""From the start of a worker process to its end, and its last words."""

import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

from recycle_runtime.checkpoint.manifest import CheckpointError
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.messages import Failed
from recycle_runtime.testing.faults import Fault, InjectedError
from recycle_runtime.worker.heartbeat import Pulse
from recycle_runtime.worker.link import CoordinatorGoneError
from recycle_runtime.worker.worker import MemberOptions, MemberProcess


def work(
    options: MemberOptions, place: Worker, part: int, line: int, faults: Sequence[Fault], board: Board
) -> int:
    """The life of a worker process; its exit status. SIGUSR1 makes it say on stderr where it is."""
    faulthandler.register(signal.SIGUSR1)
    pulse = Pulse(board, line)
    process: MemberProcess | None = None
    try:
        process = MemberProcess(options, place, part, pulse, faults)
        process.link.on_stuck = partial(_relieve, process, pulse, place)
        return process.run()
    except Exception as error:
        return _end_early(process, pulse, place, error)


def _relieve(process: MemberProcess, pulse: Pulse, place: Worker, seconds: float) -> None:
    """Live on in place of a thread that has waited in vain for so long, if it has, to the process's end."""
    if not process.take_over(seconds):
        return
    status = 1
    try:
        status = process.go_on()
    except Exception as error:
        status = _end_early(process, pulse, place, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_early(process: MemberProcess | None, pulse: Pulse, place: Worker, error: Exception) -> int:
    # If it is the coordinator that is gone, the job is over, or its agent says what is wrong.
    if not isinstance(error, CoordinatorGoneError | WireError):
        _say_farewell(process, pulse.step, place, error)
    return 1


def _say_farewell(process: MemberProcess | None, step: int, place: Worker, error: Exception) -> None:
    # Nobody can begin with a checkpoint that is damaged, or another job's.
    is_hopeless = isinstance(error, CheckpointError)
    known = isinstance(error, StreamError) or is_hopeless
    why = str(error) if known else f"worker {place[0]}:{place[1]}: {type(error).__name__}: {error}"
    if process is not None and process.has_parts and isinstance(error, StreamError):
        why = f"part {process.part} of {why}"
    if process is None:
        print(f"recycle-run: {why}", file=sys.stderr)
    else:
        is_injected = InjectedError in (type(error), type(error.__cause__))
        process.link.say(Failed(step, why, is_injected, is_hopeless))
