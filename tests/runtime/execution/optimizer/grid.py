"""A small model in stages, trained by threads, or by one process as the reference."""

import threading
from collections.abc import Callable, Iterable

import torch

from recycle_runtime.execution.optimizer import StepOptions, Stepper, Verdict
from tests.runtime.execution.optimizer.fakes import Arriving, Group, backward
from tests.runtime.execution.optimizer.optimizers import MakeOptimizer


class Stage:
    """Parameters of one stage, and gradients that depend on them and on the micro-batch."""

    def __init__(self, stage: int, dtype: torch.dtype = torch.float64) -> None:
        self.number = stage
        generator = torch.Generator().manual_seed(stage)
        self.parameters = [
            torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))
            for shape in ((3, 2 + stage), (5,), (), (2, 2))
        ]
        self.parameters[-1].requires_grad_(False)

    def backward(self, step: int, microbatch: int, size: float) -> None:
        """Leave the second parameter out now and then; `size` scales gradients and may be NaN."""
        generator = torch.Generator().manual_seed(1000 * self.number + 100 * step + microbatch)
        left_out = 1 if step % 3 == 2 else None
        loss = torch.zeros((), dtype=self.parameters[0].dtype)
        for index, parameter in enumerate(self.parameters):
            slope = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if index != left_out:
                loss = loss + size * (slope * parameter + 0.1 * parameter.square() * parameter).sum()
        backward(loss)


Sizes = dict[tuple[int, int], float]
"""How large gradients are at (step, stage); 1.0 where nothing is said."""

MakeScheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def no_schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


class Grid:
    """Stages times peers as threads; every peer runs every other micro-batch."""

    def __init__(self, stages: int, peers: int, microbatches: int, steps: int, sizes: Sizes) -> None:
        self.stages, self.peers, self.microbatches, self.steps = stages, peers, microbatches, steps
        self.sizes = sizes

    def train(
        self, make: MakeOptimizer, options: StepOptions, schedule: MakeScheduler = no_schedule
    ) -> tuple[list[list[Stage]], list[list[Stepper]]]:
        """All workers by (stage, peer), after the last step."""
        world = Group(self.stages * self.peers)
        stages = [[Stage(stage) for _ in range(self.peers)] for stage in range(self.stages)]
        steppers: list[list[Stepper]] = []
        threads: list[threading.Thread] = []
        failures: list[BaseException] = []
        for number in range(self.stages):
            peers = Group(self.peers)
            steppers.append([])
            for peer in range(self.peers):
                stage = stages[number][peer]
                trainable = [parameter for parameter in stage.parameters if parameter.requires_grad]
                optimizer = make(trainable)
                stepper = Stepper(optimizer, stage.parameters, options)
                stepper.norm.first_peer = peer == 0
                steppers[-1].append(stepper)
                ends = (peers.starter(peer), world.starter(number * self.peers + peer))
                arguments = (stage, peer, stepper, schedule(optimizer), *ends, failures)
                threads.append(threading.Thread(target=self._work, args=arguments))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return stages, steppers

    def _work(
        self,
        stage: Stage,
        peer: int,
        stepper: Stepper,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        over_peers: Callable[[torch.Tensor], Arriving],
        over_all: Callable[[torch.Tensor], Arriving],
        failures: list[BaseException],
    ) -> None:
        try:
            for step in range(self.steps):
                self._backward(stage, peer, step)
                if stepper.settle() is Verdict.REDO:
                    self._backward(stage, peer, step)
                stepper.reduce(over_peers)
                stepper.step(over_all)
                scheduler.step()
                if stepper.options.staggered:
                    stepper.validate(over_all)
            stepper.settle()
        except BaseException as error:
            failures.append(error)

    def _backward(self, stage: Stage, peer: int, step: int) -> None:
        for microbatch in range(peer, self.microbatches, self.peers):
            stage.backward(step, microbatch, self.sizes.get((step, stage.number), 1.0))

    def train_alone(
        self, make: MakeOptimizer, clip_norm: float | None, schedule: MakeScheduler = no_schedule
    ) -> tuple[list[Stage], list[torch.optim.Optimizer], int]:
        """The same training as one process would do it; the optimizers are one for each stage."""
        stages = [Stage(stage) for stage in range(self.stages)]
        everything = [parameter for stage in stages for parameter in stage.parameters]
        optimizers = [make([p for p in stage.parameters if p.requires_grad]) for stage in stages]
        schedulers = [schedule(optimizer) for optimizer in optimizers]
        skipped = 0
        for step in range(self.steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            for stage in stages:
                sums: list[list[torch.Tensor | None]] = []
                for peer in range(self.peers):
                    self._backward(stage, peer, step)
                    sums.append([parameter.grad for parameter in stage.parameters])
                    for parameter in stage.parameters:
                        parameter.grad = None
                for index, parameter in enumerate(stage.parameters):
                    parameter.grad = added([gradients[index] for gradients in sums])
            limit = float("inf") if clip_norm is None else clip_norm
            norm = torch.nn.utils.clip_grad_norm_(everything, limit)
            if torch.isfinite(norm):
                for optimizer in optimizers:
                    optimizer.step()
            else:
                skipped += 1
            for scheduler in schedulers:
                scheduler.step()
        return stages, optimizers, skipped


def added(gradients: Iterable[torch.Tensor | None]) -> torch.Tensor | None:
    total = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient if total is None else total + gradient
    return total
