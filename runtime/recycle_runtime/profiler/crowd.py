"""Other workers at work while one is measured: processes that share a device are not quite independent.

Each of them runs one stage over and over, forward and both halves of backward, as workers do between bubbles.
"""

import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.split_backward import prepare
from recycle_runtime.profiler.stage_run import StageRun, as_tensors
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program
from recycle_runtime.program.named_inputs import with_host_text

_START_SECONDS = 300.0


@contextmanager
def crowd(program: str, stages: int, device: str, seed: int, others: int) -> Generator[None]:
    """So many other workers, stage after stage, busy until this ends."""
    context = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Connection]] = []
    try:
        for number in range(others):
            ours, theirs = context.Pipe()
            arguments = (program, number % stages, stages, device, seed, theirs)
            process = context.Process(target=_keep_busy, args=arguments, daemon=True)
            process.start()
            theirs.close()
            started.append((process, ours))
        for _, pipe in started:
            if not pipe.poll(_START_SECONDS) or pipe.recv_bytes() != b"busy":
                raise ProgramError(f"the other {others} workers did not start: see above")
        yield
    except EOFError:
        raise ProgramError(f"the other {others} workers did not start: see above") from None
    finally:
        for process, _ in started:
            process.kill()
        for process, pipe in started:
            process.join()
            pipe.close()


def _keep_busy(path: str, stage: int, stages: int, device_name: str, seed: int, pipe: Connection) -> None:
    torch.set_num_threads(1)
    device, program = torch.device(device_name), load_program(path)
    data, target = MicroBatches(program, seed, 1).item(0, 0)
    precision = program.precision
    arguments = program.arguments(data)
    texts = with_host_text(data, arguments)
    inputs = (*arguments[:texts], *(precision.entering(each.to(device)) for each in arguments[texts:]))
    with torch.no_grad(), precision.computing(device):
        for before in range(stage):
            module = build_module(program, before, stages, seed).to(device, precision.weights)
            inputs = as_tensors(module(*inputs))
            del module
    module = build_module(program, stage, stages, seed).to(device, precision.weights).train()
    wanted = target.to(device) if isinstance(target, torch.Tensor) else target

    def loss(output: Any) -> torch.Tensor:
        return program.loss(output, wanted)

    is_last = stage == stages - 1
    run, split = (
        StageRun(
            module,
            inputs,
            is_first=stage == 0,
            loss=loss if is_last else None,
            precision=precision,
        ),
        prepare(module),
    )
    rounds = 0
    while True:
        outputs = run.forward(run.fresh_inputs())
        split.backward_input(outputs, run.gradients(outputs)).run()
        if device.type == "cuda":
            # As far ahead as a worker is, and not further.
            torch.cuda.synchronize(device)
        rounds += 1
        if rounds == 3:
            pipe.send_bytes(b"busy")
        if rounds % 50 == 0:
            for parameter in module.parameters():
                parameter.grad = None
