"""The random numbers of forwards: the same wherever a forward runs, and whenever it is run again.

They depend on seed, step, micro-batch and layer alone, so no cut of the model changes them. Where a program
gives whole stages, the number of the stage stands for that of the layer. What is computed again in a backward
(torch.utils.checkpoint) brings the state of the generators along from the middle of its layer.
"""

import torch


class ForwardRandom:
    """The generators that a chunk may draw from."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._moment = (0, 0)
        self.is_off = False
        """Whether forwards must leave the generators alone: they are captured, and draw nothing."""
        self._has_drawn = self._is_seeded = False
        # torch.manual_seed asks every backend, and takes most of a millisecond.
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()
            self._generators.append(torch.cuda.default_generators[device.index or 0])

    def begin(self, step: int, index: int) -> None:
        """The forward of a micro-batch, by its number among all of the step."""
        self._moment = step, index

    @property
    def has_drawn(self) -> bool:
        """Whether a layer has drawn numbers on a GPU so far."""
        return self._has_drawn or self._is_moved()

    def enter(self, layer: int) -> None:
        """What is drawn from now on is drawn by this layer."""
        if self.is_off:
            return
        self._has_drawn = self._has_drawn or self._is_moved()
        seed = forward_seed(self._seed, *self._moment, layer)
        for generator in self._generators:
            generator.manual_seed(seed)
        self._is_seeded = True

    def _is_moved(self) -> bool:
        """Whether numbers were drawn from a GPU's generator since it was given its seed."""
        return len(self._generators) > 1 and self._is_seeded and self._generators[1].get_offset() != 0


def forward_seed(seed: int, step: int, index: int, layer: int) -> int:
    """Of one layer in the forward of one micro-batch."""
    mixed = seed
    for number in (step, index, layer):
        mixed = (mixed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % (1 << 63)
    return mixed
