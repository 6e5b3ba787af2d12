"""The random numbers that data draws: the same for the same micro-batch, and none of the model's.

Generators of torch, of Python and of numpy (where the program uses it) belong to the whole process. Whatever
draws from them on the thread that runs the model does so with a state of its own, which is taken away again.
"""

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

_NUMPY_SEEDS = 1 << 32


def item_seed(seed: int, number: int) -> int:
    """Of one micro-batch, by its number in the whole run."""
    mixed = seed
    for part in (number, 0x5EED):
        mixed = (mixed * 6_364_136_223_846_793_005 + part + 1_442_695_040_888_963_407) % (1 << 63)
    return mixed


class _States(NamedTuple):
    torch: torch.Tensor
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> "_States":
        return cls(torch.get_rng_state(), random.getstate(), _numpy_state())

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        if self.numpy is not None:
            _numpy().set_state(self.numpy)


class PrivateRandom:
    """A state of the generators that goes on from one use of it to the next."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: _States | None = None

    @contextmanager
    def drawing(self) -> Generator[None]:
        """Everything drawn in here continues this state; the shared one is put back after."""
        shared = _States.now()
        if self._states is None:
            _seed_all(self._seed)
        else:
            self._states.restore()
        try:
            yield
        finally:
            self._states = _States.now()
            shared.restore()


class Drawn:
    """What `seeded` has found out when it is over."""

    is_random = False
    """Whether anything was drawn, or seeded, in there."""


@contextmanager
def seeded(seed: int) -> Generator[Drawn]:
    """Everything drawn in here begins with this seed; the shared states are put back after."""
    shared, drawn = _States.now(), Drawn()
    _seed_all(seed)
    before = _States.now()
    try:
        yield drawn
    finally:
        drawn.is_random = not torch.equal(before.torch, torch.get_rng_state()) or outside_torch() != (
            _comparable(before.python, before.numpy)
        )
        shared.restore()


def seed_process(seed: int) -> None:
    """All generators of a process that does nothing but draw data."""
    _seed_all(seed)


def outside_torch() -> object:
    """The states of Python's and numpy's generators, to be compared."""
    return _comparable(random.getstate(), _numpy_state())


def _comparable(python: Any, numpy: Any) -> object:
    return python, None if numpy is None else (numpy[0], numpy[1].tobytes(), *numpy[2:])


def _seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := _numpy()) is not None:
        numpy.seed(seed % _NUMPY_SEEDS)


def _numpy() -> Any:
    """The runtime does not need numpy; a program may."""
    return getattr(sys.modules.get("numpy"), "random", None)


def _numpy_state() -> Any:
    numpy = _numpy()
    return None if numpy is None else numpy.get_state()
