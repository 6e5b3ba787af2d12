"""The random numbers of forwards: the same wherever a forward runs, and whenever it is run again.

They depend on seed, step, micro-batch and layer alone, so no cut of the model changes them. Where a program
gives whole stages, the number of the stage stands for that of the layer. So it is with the generators of
torch, of Python and of numpy. What is computed again in a backward (torch.utils.checkpoint) brings the state
of torch's generators along from the middle of its layer, and that of no other.

All of them belong to the process. A layer leaves them where it has stopped to draw: whoever wants others
between two forwards keeps them (`preserved_random`).

A captured forward has a generator for each of its layers in the place of the device's one: a graph reads seed
and offset of a generator when it is replayed, so these are given their seeds before.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from recycle_runtime.program.host_random import HOST

Captured = Mapping[int, Any]
"""A generator for each layer."""


class ForwardRandom:
    """The generators that a chunk may draw from."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._moment = (0, 0)
        self._captured: Captured | None = None
        """Generator states that layers draw from while their forward is captured."""
        self.draws_on_host = False
        """True if a forward that was watched has drawn numbers that a graph would not draw again."""
        self._watched: torch.Tensor | None = None
        """The state of the host's generator when it was looked at last, while somebody watches."""
        # torch.manual_seed asks every backend, and takes most of a millisecond.
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()
            self._generators.append(torch.cuda.default_generators[device.index or 0])

    def begin(self, step: int, index: int) -> None:
        """The forward of a micro-batch, by its number among all of the step."""
        self._moment = step, index

    def enter(self, layer: int) -> None:
        """Seed the generators for the draws of this layer."""
        if self._captured is not None:
            self._generators[1].graphsafe_set_state(self._captured[layer])
            return
        if self._watched is not None:
            self._look()
        seed = forward_seed(self._seed, *self._moment, layer)
        for generator in self._generators:
            generator.manual_seed(seed)
        HOST.seed(seed)
        if self._watched is not None:
            self._watched = torch.default_generator.get_state()

    @contextmanager
    def watching(self) -> Generator[None]:
        """Around a forward: sees whether it draws numbers on the host."""
        self._watched = torch.default_generator.get_state()
        try:
            with HOST.watching() as host:
                yield
        finally:
            self._look()
            self._watched = None
        self.draws_on_host = self.draws_on_host or host.is_random

    def generators(self, layers: Sequence[int]) -> Captured:
        """To be drawn from by these layers when they are captured."""
        return {layer: self._generators[1].clone_state() for layer in layers}

    @contextmanager
    def capturing(self, generators: Captured) -> Generator[None]:
        """Layers draw from these."""
        # Not the state itself: one that takes part in a capture that breaks off is of no use any more.
        own = self._generators[1].clone_state()
        self._captured = generators
        try:
            yield
        finally:
            self._captured = None
            self._generators[1].graphsafe_set_state(own)

    def give_seeds(self, generators: Captured, step: int, index: int) -> None:
        """Before a replay: those of the forward of this micro-batch."""
        for layer, generator in generators.items():
            generator.manual_seed(forward_seed(self._seed, step, index, layer))

    def _look(self) -> None:
        """True if numbers were drawn from the host's generator since the last look."""
        assert self._watched is not None, "nobody watches"
        is_moved = not torch.equal(self._watched, torch.default_generator.get_state())
        self.draws_on_host = self.draws_on_host or is_moved


def forward_seed(seed: int, step: int, index: int, layer: int) -> int:
    """Of one layer in the forward of one micro-batch."""
    mixed = seed
    for number in (step, index, layer):
        mixed = (mixed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % (1 << 63)
    return mixed
