"""From the start of a worker process to its end, and its last words."""

import faulthandler
import logging
import os
import signal
import sys
from functools import partial

from recycle_runtime import logs
from recycle_runtime.checkpoint.manifest import CheckpointError
from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.messages import Failed
from recycle_runtime.worker.heartbeat import Heartbeat
from recycle_runtime.worker.link import CoordinatorGoneError
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.process import WorkerProcess

_log = logging.getLogger(__name__)


def work(
    options: ProcessOptions, worker: Worker, tp_rank: int, line: int, board: Board, hooks: Hooks | None = None
) -> int:
    """The life of a worker process; its exit status. SIGUSR1 makes it say on stderr where it is.

    `line` is its place on its node's board.
    """
    faulthandler.register(signal.SIGUSR1)
    logs.forget()
    logs.note(worker=worker_text(worker))
    hooks = hooks or Hooks()
    heartbeat = Heartbeat(board, line)
    process: WorkerProcess | None = None
    try:
        process = WorkerProcess(options, worker, tp_rank, heartbeat, hooks)
        process.link.on_stuck = partial(_take_over, process, heartbeat, worker, hooks)
        return process.run()
    except Exception as error:
        return _end_early(process, heartbeat, worker, hooks, error)


def _take_over(
    process: WorkerProcess, heartbeat: Heartbeat, worker: Worker, hooks: Hooks, seconds: float
) -> None:
    """Live on in place of a thread that has waited in vain for so long, if it has, to the process's end."""
    if not process.take_over(seconds):
        return
    status = 1
    try:
        status = process.go_on()
    except Exception as error:
        status = _end_early(process, heartbeat, worker, hooks, error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_early(
    process: WorkerProcess | None, heartbeat: Heartbeat, worker: Worker, hooks: Hooks, error: Exception
) -> int:
    if isinstance(error, CoordinatorGoneError | WireError):
        # The job is over, or its agent says what is wrong.
        _log.info("ends: %s", error)
        return 1
    # Nobody can begin with a checkpoint that is damaged, or another job's.
    is_hopeless = isinstance(error, CheckpointError)
    known = isinstance(error, StreamError) or is_hopeless
    why = str(error) if known else f"worker {worker_text(worker)}: {type(error).__name__}: {error}"
    if process is None:
        _log.error("%s", why)
        return 1
    if process.has_ranks and isinstance(error, StreamError):
        why = f"rank {process.tp_rank} of {why}"
    is_injected = hooks.caused(error)
    _log.info("ends: %s", why)
    process.link.say(Failed(heartbeat.step, why, is_injected, is_hopeless))
    return 1
