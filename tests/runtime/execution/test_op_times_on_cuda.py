"""Op times on a GPU: events in one step of twenty, read later."""

import pytest
import torch

from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.execution.op_times import OpTimes
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.transport.guarded import guarded
from recycle_runtime.worker.takeover import ActiveThread

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Shown:
    is_waiting = False


def test_ops_are_timed_by_the_device_and_waits_are_not() -> None:
    device = torch.device("cuda")
    times = OpTimes(device)
    waits = ActiveThread(Shown(), times.resume)
    matrix = torch.ones(2048, 2048, device=device)

    def handler(_: Instruction) -> None:
        guarded(lambda: torch.cuda._sleep(200_000_000), waits)  # pyright: ignore[reportPrivateUsage]
        matrix @ matrix  # pyright: ignore[reportUnusedExpression]

    table = times.around({Opcode.FORWARD: handler, Opcode.REDUCE: handler})
    found: list[dict[str, float]] = []
    for _ in range(45):
        times.begin()
        for opcode in (Opcode.FORWARD, Opcode.REDUCE):
            table[opcode](Instruction(opcode))
        torch.cuda.synchronize()
        found.append(times.take())
    sampled = [step for step in found if step]
    assert len(sampled) == 2
    for step in sampled:
        # The device sleeps for a tenth of a second or so before the product, which takes far less.
        assert 0 < 10 * step["F"] < step["R"]


def test_a_slow_worker_is_slow_on_a_gpu_too() -> None:
    hooks = Hooks()
    hooks.slowdown = 3.0
    times = OpTimes(torch.device("cuda"), hooks)

    def handler(_: Instruction) -> None:
        torch.cuda._sleep(20_000_000)  # pyright: ignore[reportPrivateUsage]

    times.begin()
    times.around({Opcode.FORWARD: handler})[Opcode.FORWARD](Instruction(Opcode.FORWARD))
    assert times.take().keys() == {"F"}
