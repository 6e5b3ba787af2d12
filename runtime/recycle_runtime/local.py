"""All workers of a plan on this machine: start them, listen to them, put together what they say.

Workers are forked from a server that has loaded torch once. They talk to each other over loopback and to this
process through pipes, a JSON text a message; the store they meet at lives here, in no worker.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.interpreter import StreamError
from recycle_runtime.plan_choice import choose_plan
from recycle_runtime.tracing import Event
from recycle_runtime.worker import StepReport, TrainingWorker, WorkerOptions


class RunError(RuntimeError):
    """A run that did not end well: one or more lines say which worker and why."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `recycle-run local` is asked for."""

    bundle: str
    program: str
    steps: int
    failed: tuple[Worker, ...] = ()
    seed: int = 0
    device: str = "cpu"
    trace: bool = False
    save: str | None = None
    """A folder for the parameters of every worker at the end."""
    timeout: float = 120.0
    """Seconds without a sign of life from any worker before the run is given up."""


class Step(NamedTuple):
    """A step of the whole run."""

    step: int
    loss: float
    seconds: float
    live: int
    plan: int


class RunResult(NamedTuple):
    """What is known at the end."""

    steps: list[Step]
    events: dict[Worker, list[Event]]
    """By the worker's place; empty unless a trace was asked for."""


class _Process(NamedTuple):
    place: Worker
    process: BaseProcess
    pipe: Connection


def run_local(options: RunOptions, on_step: Callable[[Step], None] = lambda _: None) -> RunResult:
    """Train; RunError when a worker fails."""
    bundle = Bundle.read(options.bundle)
    choice = choose_plan(bundle, options.failed)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    base = WorkerOptions(
        bundle=options.bundle,
        program=options.program,
        plan=choice.plan,
        worker=(0, 0),
        part=0,
        steps=options.steps,
        seed=options.seed,
        device=options.device,
        trace=options.trace,
        timeout=options.timeout,
    )
    ranks = [(place, role, part) for place, role in choice.parts.items() for part in range(bundle.tensor)]
    told = [(place, replace(base, worker=role, part=part)) for place, role, part in ranks]
    gather = _Gather(choice.plan, len(choice.parts), on_step)
    with _started(told, store.port, options.save) as processes:
        _listen(processes, gather, options.timeout)
    return RunResult(gather.steps, gather.events)


class _Gather:
    """Puts the reports of workers together into steps."""

    def __init__(self, plan: int, live: int, on_step: Callable[[Step], None]) -> None:
        self.steps: list[Step] = []
        self.events: dict[Worker, list[Event]] = {}
        self.done: set[int] = set()
        self._plan, self._live, self._on_step = plan, live, on_step
        self._reports: dict[int, dict[Worker, StepReport]] = {}

    def take(self, number: int, place: Worker, part: int, message: dict[str, Any]) -> None:
        """One message of a worker."""
        if "error" in message:
            raise RunError(str(message["error"]))
        if "events" in message:
            self.events[place] = [Event(*row) for row in message["events"]]
        if message.get("done"):
            self.done.add(number)
        if "step" in message and part == 0:
            report = StepReport(**message)
            rows = self._reports.setdefault(report.step, {})
            rows[place] = report
            if len(rows) == self._live:
                self._finish(report.step, rows)

    def _finish(self, step: int, rows: dict[Worker, StepReport]) -> None:
        losses = [row.loss for row in rows.values() if row.loss is not None]
        whole = Step(step, sum(losses), max(row.seconds for row in rows.values()), self._live, self._plan)
        self.steps.append(whole)
        del self._reports[step]
        self._on_step(whole)


@contextmanager
def _started(
    told: list[tuple[Worker, WorkerOptions]], port: int, save: str | None
) -> Generator[list[_Process]]:
    """The processes; whatever happens, none is left running."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recycle_runtime.worker"])
    processes: list[_Process] = []
    try:
        for place, options in told:
            ours, theirs = context.Pipe()
            arguments = (options, place, port, save, theirs)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            processes.append(_Process(place, process, ours))
        yield processes
    finally:
        for _, process, _ in processes:
            if process.is_alive():
                process.kill()
        for _, process, pipe in processes:
            process.join()
            pipe.close()


def _listen(processes: list[_Process], gather: _Gather, timeout: float) -> None:
    """Until every worker is done; RunError when one fails or all fall silent."""
    open_pipes = {entry.pipe: number for number, entry in enumerate(processes)}
    parts = [
        sum(other.place == entry.place for other in processes[:number])
        for number, entry in enumerate(processes)
    ]
    while open_pipes:
        ready = wait(list(open_pipes), timeout)
        if not ready:
            waiting = [_name(processes[number].place) for number in sorted(open_pipes.values())]
            raise RunError(f"no sign of life for {timeout:.0f} s; still running: {', '.join(waiting)}")
        for pipe in ready:
            assert isinstance(pipe, Connection)
            number = open_pipes[pipe]
            try:
                text = pipe.recv_bytes()
            except (EOFError, OSError):
                del open_pipes[pipe]
                if number not in gather.done:
                    raise RunError(_obituary(processes[number])) from None
                continue
            gather.take(number, processes[number].place, parts[number], json.loads(text))


def _obituary(entry: _Process) -> str:
    entry.process.join(5)
    code = entry.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
    return f"worker {_name(entry.place)} {how}"


def _work(options: WorkerOptions, place: Worker, port: int, save: str | None, pipe: Connection) -> None:
    """What a worker process runs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    def tell(message: dict[str, Any]) -> None:
        pipe.send_bytes(json.dumps(message).encode())

    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        worker = TrainingWorker(options, store)
        worker.train(lambda report: tell(report._asdict()))
        if save is not None:
            _save(Path(save), place, options, worker)
        if worker.tracer is not None and options.part == 0:
            tell({"events": worker.tracer.events})
        # Nobody leaves while others may still need something from it.
        worker.transport.barrier()
        tell({"done": True})
    except BrokenPipeError:
        # Whoever started the run is gone, so there is nothing left to do it for.
        return
    except Exception as error:
        known = isinstance(error, StreamError)
        tell({"error": str(error) if known else f"worker {_name(place)}: {type(error).__name__}: {error}"})
        time.sleep(0.2)


def _save(folder: Path, place: Worker, options: WorkerOptions, worker: TrainingWorker) -> None:
    name = f"worker-{place[0]}-{place[1]}-{options.part}.pt"
    torch.save({"options": json.dumps(asdict(options)), "model": worker.module.state_dict()}, folder / name)


def _name(worker: Worker) -> str:
    return f"{worker[0]}:{worker[1]}"
