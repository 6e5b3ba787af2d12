"""From the start of a worker process to its end, and its last words."""

import faulthandler
import logging
import os
import signal
import sys
import threading
from contextlib import suppress

import torch

from recycle_runtime import logs
from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.experts.placement import UnplacedError
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.program.loading import Program
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.messages.generations import Failed
from recycle_runtime.protocol.surroundings import completed
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.transport.rank_mesh import belong_to_worker
from recycle_runtime.worker.debugging import look_at
from recycle_runtime.worker.heartbeat import HeartbeatWriter
from recycle_runtime.worker.last_words import program_error_text
from recycle_runtime.worker.link import CoordinatorGoneError
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.process import WorkerProcess
from recycle_runtime.worker.requests import Requests

_log = logging.getLogger(__name__)


class Life:
    """Of a worker process, from its start to its last words. SIGUSR1 makes it say on stderr where it is."""

    def __init__(
        self,
        options: ProcessOptions,
        worker: Worker,
        tp_rank: int,
        line: int,
        board: Board,
        hooks: Hooks | None = None,
        requests: Requests | None = None,
    ) -> None:
        """`requests` are those of the user's script, if there is one."""
        faulthandler.register(signal.SIGUSR1)
        # The agent asks by another signal before it kills a process that hangs; Python need not run for it.
        self._dump = open(board.dump_path(line), "a")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR2, self._dump)
        logs.forget_note()
        logs.note(worker=worker_text(worker))
        self.worker, self.options = worker, options
        self._tp_rank, self._hooks = tp_rank, hooks or Hooks()
        # The user's code may ask for it as soon as it runs.
        tensor = Bundle.read(options.bundle).tensor
        ranks = options.ranks or tensor
        belong_to_worker(
            tp_rank * ranks // tensor,
            ranks,
            torch.device("cpu" if options.device == "cpu" else "cuda"),
        )
        self.requests = requests
        self._heartbeat = HeartbeatWriter(board, line)
        self._process: WorkerProcess | None = None
        self._joining = threading.Lock()
        """Engine or script may need it first, and a second line would cut off the first."""
        self._over = threading.Event()
        self._status = 1

    def train(self, program: Program | None = None, seed: int | None = None) -> int:
        """On this thread, to the end of the job; the exit status."""
        try:
            return self._joined().run(program, seed)
        except Exception as error:
            return self.end_early(error)

    def start(self, program: Program, seed: int | None) -> None:
        """The same on a thread of its own, beside the user's script."""
        engine = threading.Thread(target=self._engine, args=(program, seed), name="engine", daemon=True)
        engine.start()

    def wait(self) -> int:
        """Until the job is over; the exit status."""
        self._over.wait()
        return self._status

    def fail(self, why: str) -> int:
        """The user's script cannot go on, here or anywhere; the exit status."""
        _log.info("ends: %s", why.partition("\n")[0])
        with suppress(WireError):
            self._joined().link.say(Failed(self._heartbeat.step, why, is_injected=False, is_hopeless=True))
        return 1

    def _engine(self, program: Program, seed: int | None) -> None:
        status = self.train(program, seed)
        if self.requests is not None and self.requests.has_ended:
            self._status = status
            self._over.set()
            return
        # The job is over, or this worker's part in it, wherever the script is.
        _exit(status)

    def _joined(self) -> WorkerProcess:
        with self._joining:
            if self._process is None:
                process = WorkerProcess(
                    self.options, self.worker, self._tp_rank, self._heartbeat, self._hooks, self.requests
                )
                process.link.on_stuck = self._take_over
                completed(process.join())
                self._process = process
            return self._process

    async def _take_over(self, seconds: float) -> None:
        """Live on in place of a thread that has waited in vain for so long, if it has, to the end."""
        process = self._process
        if process is None or not process.take_over(seconds):
            return
        status = 1
        try:
            status = await process.go_on()
        except Exception as error:
            status = self.end_early(error)
        finally:
            _exit(status)

    def end_early(self, error: Exception) -> int:
        """Say why; the exit status."""
        if isinstance(error, CoordinatorGoneError | WireError):
            # The job is over, or its agent says what is wrong.
            _log.info("ends: %s", error)
            return 1
        # Nobody can begin with a checkpoint that is damaged, or another job's; nor with more experts than
        # slots: where failures are why, the coordinator waits before anybody begins.
        is_hopeless = isinstance(error, CheckpointError | UnplacedError)
        is_named = isinstance(error, CheckpointError)
        why = str(error) if is_named else program_error_text(error, worker_text(self.worker))
        try:
            process = self._joined()
        except WireError:
            # The job is over: another worker has told the same, or the coordinator what ended it.
            _log.info("ends: %s", why)
            return 1
        if process.has_ranks and isinstance(error, StreamError):
            why = f"rank {process.tp_rank} of {why}"
        is_injected = self._hooks.caused(error)
        if self.options.is_debugged and not is_injected:
            look_at(error)
        # With the window of instructions that a StreamError has.
        _log.info("ends: %s", error)
        process.link.say(Failed(self._heartbeat.step, why, is_injected, is_hopeless))
        return 1


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
