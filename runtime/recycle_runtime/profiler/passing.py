"""Micro-batches on their way through the stages or layers of a program, and how much unlike ones differ.

Where the first micro-batches of the data have unlike shapes, the largest is measured in full: what it holds
is what a worker needs room for. The others go through each piece beside it, and its times are made the means
of all. How much the time of a whole micro-batch differs from that mean is the spread of op times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.data.reading import NoMoreDataError
from recycle_runtime.profiler.meters import Timing
from recycle_runtime.profiler.report import StageCosts
from recycle_runtime.profiler.stage_run import StageRun, Tensors
from recycle_runtime.program.loading import Program
from recycle_runtime.program.named_inputs import as_tuple, with_host_text

_MOST_PPM = 1_000_000
"""Of the spread that a job may have."""

Times = tuple[Timing, Timing, Timing]
"""F, I and W."""


@dataclass(frozen=True, slots=True)
class AlikeMicroBatches:
    """Micro-batches of one shape."""

    pair: tuple[Any, Any]
    """Input and target of the first of them."""
    half: tuple[Any, Any] | None
    """Those of its first half; None if it does not have an even number of samples in every tensor."""
    count: int = 1

    @property
    def size(self) -> int:
        """Numbers in its input."""
        return sum(part.numel() for part in as_tuple(self.pair[0]))


def first_kinds(program: Program, seed: int, most: int) -> list[AlikeMicroBatches]:
    """Shapes of the first so many micro-batches of the data, or of all that it has; the largest first."""
    found: dict[str, AlikeMicroBatches] = {}
    batches = MicroBatches(program, seed, 1)
    try:
        for step in range(most):
            try:
                look = batches.look(step, 0)
            except NoMoreDataError:
                # Training may need fewer; without any there is nothing to measure.
                if not found:
                    raise
                break
            if (known := found.get(look.signature)) is not None:
                found[look.signature] = replace(known, count=known.count + 1)
                continue
            is_even = look.samples is not None and look.samples % 2 == 0
            half = batches.item(step, 0, 0, 2) if is_even else None
            found[look.signature] = AlikeMicroBatches(batches.item(step, 0), half)
    finally:
        batches.close()
    return sorted(found.values(), key=lambda kind: -kind.size)


class Passing:
    """A micro-batch, or a half of one, from piece to piece."""

    def __init__(self, program: Program, pair: tuple[Any, Any], device: torch.device) -> None:
        data, target = pair
        arguments = program.arguments(data)
        texts = with_host_text(data, arguments)
        self._program = program
        self.inputs: Tensors = (*arguments[:texts], *(tensor.to(device) for tensor in arguments[texts:]))
        self._target = target.to(device) if isinstance(target, torch.Tensor) else target

    def run(self, module: torch.nn.Module, *, is_first: bool, is_last: bool) -> StageRun:
        """The next piece with this micro-batch."""
        loss = self._loss if is_last else None
        return StageRun(module, self.inputs, is_first=is_first, loss=loss, precision=self._program.precision)

    def pass_on(self, run: StageRun) -> None:
        """To the piece after the one that it was run on."""
        with torch.no_grad():
            self.inputs = run.forward(run.fresh_inputs())

    def _loss(self, output: Any) -> torch.Tensor:
        return self._program.loss(output, self._target)


class UnlikeTimes:
    """Times of unlike micro-batches, piece by piece."""

    def __init__(self, kinds: Sequence[AlikeMicroBatches]) -> None:
        self._counts = [kind.count for kind in kinds]
        self._totals = [0] * len(kinds)
        """Of each kind, F, I and W of all pieces so far."""

    @property
    def spread_ppm(self) -> int | None:
        """Standard deviation of the times, in millionths of the mean; None if all micro-batches are alike."""
        if len(self._counts) == 1:
            return None
        mean = self._mean(self._totals)
        variance = self._mean([(total - mean) ** 2 for total in self._totals])
        return min(_MOST_PPM, round(1_000_000 * variance**0.5 / mean))

    def averaged(self, costs: StageCosts, measured: Sequence[Times]) -> StageCosts:
        """Costs of the first kind with the mean times of all, from those of a piece measured in turn."""
        for number, times in enumerate(measured):
            self._totals[number] += sum(timing.median for timing in times)
        means = [
            self._mean([times[op].median for times in measured]) / max(1, measured[0][op].median)
            for op in range(3)
        ]
        forward, first, second = means
        whole = costs.backward_input.median * first + costs.backward_weight.median * second
        backward = whole / max(1, costs.backward_input.median + costs.backward_weight.median)

        def scaled(timings: tuple[Timing, ...]) -> Any:
            factors = (forward, first, second, backward)
            return tuple(timing.scaled(factor) for timing, factor in zip(timings, factors, strict=False))

        ops = (costs.forward, costs.backward_input, costs.backward_weight, costs.backward)
        names = ("forward", "backward_input", "backward_weight", "backward")
        return replace(
            costs,
            **dict(zip(names, scaled(ops), strict=True)),
            half=None if costs.half is None else scaled(costs.half),
            beside_message=None if costs.beside_message is None else scaled(costs.beside_message),
        )

    def _mean(self, values: Sequence[float]) -> float:
        return fmean(values, self._counts)
