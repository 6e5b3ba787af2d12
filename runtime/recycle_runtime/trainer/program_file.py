"""A program file in a worker process: the short form, for which this is the script.

    for step in ...:
        report = step made
        if on_step(report): stop

A program that does not define `on_step` has no script: its engine runs free.
"""

import os
from functools import partial
from pathlib import Path

from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.program.loading import Program, load_program
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.trainer.report import Report
from recycle_runtime.trainer.script import as_process, outcome, preserved_random
from recycle_runtime.worker.lifecycle import Life
from recycle_runtime.worker.options import ProcessOptions
from recycle_runtime.worker.requests import Requests


def work_with_program(
    options: ProcessOptions, worker: Worker, tp_rank: int, line: int, board: Board, hooks: Hooks | None = None
) -> int:
    """The life of a worker process that trains a program; its exit status."""
    life = Life(options, worker, tp_rank, line, board, hooks)
    try:
        program = load_program(options.program)
    except Exception as error:
        return life.end_early(error)
    if program.on_step is None:
        return life.train(program)
    requests = life.requests = Requests()
    os.register_at_fork(after_in_child=requests.leave_to_parent)
    life.start(program, None)
    why = outcome(Path(options.program), worker, lambda: _loop(program, requests))
    if why is not None:
        return life.fail(why)
    requests.end()
    return life.wait()


def _loop(program: Program, requests: Requests) -> None:
    """Until the job has no more steps, or the program wants none."""
    assert program.on_step is not None
    start = requests.begin()
    step, is_made = start.step, start.is_made
    while True:
        if not is_made:
            with preserved_random():
                requests.make(step)
        is_made = False
        requests.keep(step + 1, b"")
        requests.forget_rows(step)
        report = Report(step, requests)
        if as_process(program.path, partial(program.on_step, report)):
            return
        step += 1
