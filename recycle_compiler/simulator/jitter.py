"""Times that are never quite the same: every op takes its time times a random number, which a seed fixes."""

from dataclasses import dataclass
from math import log1p, sqrt

import numpy as np

from recycle_compiler.simulator.costs import Floats


@dataclass(frozen=True, slots=True)
class Jitter:
    """Lognormal factors with mean 1. Workers that sum gradients together take the same time for it."""

    variation: float
    """Standard deviation over mean; 0 is none at all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.variation < float("inf"):
            raise ValueError(f"the variation must be at least 0 and finite, got {self.variation}")
        if self.seed < 0:
            raise ValueError(f"the seed must be at least 0, got {self.seed}")

    def factors(self, iteration: int, count: int) -> Floats:
        """One for each of so many rows, in one iteration."""
        if self.variation == 0:
            return np.ones(count)
        spread = log1p(self.variation**2)
        random = np.random.default_rng((self.seed, iteration))
        return random.lognormal(-spread / 2, sqrt(spread), count)
