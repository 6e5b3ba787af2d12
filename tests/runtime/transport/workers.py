"""Workers as threads, each with the transport under test."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.execution.session import StepReport
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.transport.interface import Grid, grid_of
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from recycle_runtime.worker.options import WorkerOptions
from tests.runtime.transport.standing import PATIENCE

Join = Callable[[dist.Store, Grid, Worker, Sequence[Instruction]], Any]


def in_threads(tasks: Sequence[Callable[[], None]]) -> None:
    """Run all at the same time; the first error of any is raised."""
    errors: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "some workers hang"


def train_over(
    join: Join, bundle_file: str, program_file: str, steps: int, device: str = "cpu"
) -> tuple[list[float], dict[Worker, FixedPlanWorker]]:
    """Losses of the steps, and the workers as they are at the end."""
    bundle, store = Bundle.read(bundle_file), dist.HashStore()
    grid = grid_of(bundle, bundle.workers(0))
    workers: dict[Worker, FixedPlanWorker] = {}
    reports: list[StepReport] = []
    # Initial parameters come from random numbers that all threads share, so stages are built one by one.
    building = threading.Lock()
    everybody = threading.Barrier(len(grid.workers))

    def work(worker: Worker) -> None:
        options = WorkerOptions(
            bundle_file,
            program_file,
            steps=steps,
            plan=0,
            worker=worker,
            tp_rank=0,
            device=device,
            timeout=PATIENCE,
        )
        if device != "cpu":
            # As processes would have.
            torch.cuda.set_stream(torch.cuda.Stream())
        transport = join(store, grid, worker, bundle.stream(0, worker))

        def joined(*_: object) -> Any:
            return transport

        with building:
            workers[worker] = FixedPlanWorker(options, store, joined)
        everybody.wait(PATIENCE)
        workers[worker].train(reports.append)
        transport.barrier()

    in_threads([lambda worker=worker: work(worker) for worker in grid.workers])
    losses = [sum(row.loss or 0.0 for row in reports if row.step == step) for step in range(steps)]
    return losses, workers
