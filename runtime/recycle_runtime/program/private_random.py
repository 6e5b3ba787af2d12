"""Random numbers that nobody else disturbs, for code that draws from the generators everybody shares."""

import random
from collections.abc import Generator
from contextlib import contextmanager

import torch


class PrivateRandom:
    """A state of torch's and Python's generators of its own, in force only inside `drawing`.

    What a model draws for its dropout then changes no data, and what the data draws changes no model.
    """

    def __init__(self, seed: int) -> None:
        generator = torch.Generator()
        generator.manual_seed(seed)
        self._torch = generator.get_state()
        self._python = random.Random(seed).getstate()

    @contextmanager
    def drawing(self) -> Generator[None]:
        """Everything drawn in here continues this state; the shared one is put back after."""
        shared = torch.get_rng_state(), random.getstate()
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        try:
            yield
        finally:
            self._torch, self._python = torch.get_rng_state(), random.getstate()
            torch.set_rng_state(shared[0])
            random.setstate(shared[1])
