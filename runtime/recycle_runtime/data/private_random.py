"""The random numbers that data draws: the same for the same micro-batch, and none of the model's.

Generators of torch, of Python and of numpy (where the program uses it) belong to the whole process. Whatever
draws from them on the thread that runs the model does so with a state of its own, which is taken away again.

numpy takes a quarter of a millisecond to tell its state or to take one. So it is handed another bit generator
instead, and its own one back: all is as it was, but that the second of a pair of normal numbers, which
`numpy.random.randn` keeps for its next call, is forgotten.
"""

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from recycle_runtime.program.host_random import HOST, numpy_random, outside_torch, put_in

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
    """A bit generator, or a state where numpy is older than 1.24; None where it is not loaded."""

    @classmethod
    def now(cls) -> "_States":
        return cls(torch.default_generator.get_state(), random.getstate(), _numpy_now())

    def restore(self) -> None:
        torch.default_generator.set_state(self.torch)
        random.setstate(self.python)
        _numpy_restore(self.numpy)


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
            _apart()
            _seed_all(self._seed)
        else:
            self._states.restore()
        try:
            yield
        finally:
            self._states = _States.now()
            shared.restore()


@contextmanager
def preserved() -> Generator[None]:
    """Whatever is drawn or seeded in here, the shared states are put back after."""
    shared = _States.now()
    HOST.part_from(shared.numpy)
    try:
        yield
    finally:
        shared.restore()


class Drawn:
    """Findings of `seeded` out when it is over."""

    is_random = False
    """True if anything was drawn, or seeded, in there."""


@contextmanager
def seeded(seed: int, *, watched: bool = False) -> Generator[Drawn]:
    """Everything drawn in here begins with this seed; the shared states are put back after.

    Whether anything was drawn is found out where that is `watched`.
    """
    shared, drawn = _States.now(), Drawn()
    own = _apart()
    _seed_all(seed)
    before = _seen() if watched else None
    try:
        yield drawn
    finally:
        drawn.is_random = watched and before != _seen()
        shared.restore()
        if own is not None:
            _spare.append(own)


_spare: list[Any] = []
"""Bit generators of numpy that nothing is drawn from now."""


def seed_process(seed: int) -> None:
    """All generators, for good."""
    numpy = numpy_random()
    if hasattr(numpy, "set_bit_generator") and not isinstance(numpy.get_bit_generator(), numpy.MT19937):
        # No other can be seeded.
        put_in(numpy.MT19937(0))
    _seed_all(seed)


def _seen() -> object:
    return torch.get_rng_state().tolist(), outside_torch()  # pyright: ignore[reportUnknownMemberType]


def _apart() -> Any:
    """A bit generator that nothing else is drawn from, put in; None where there is none to put in."""
    numpy = numpy_random()
    if not hasattr(numpy, "set_bit_generator"):
        return None
    try:
        own = _spare.pop()
    except IndexError:
        own = numpy.MT19937(0)
    put_in(own)
    return own


def _seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := numpy_random()) is not None:
        numpy.seed(seed % _NUMPY_SEEDS)


def _numpy_now() -> Any:
    numpy = numpy_random()
    if numpy is None:
        return None
    return numpy.get_bit_generator() if hasattr(numpy, "get_bit_generator") else numpy.get_state()


def _numpy_restore(kept: Any) -> None:
    numpy = numpy_random()
    if numpy is None:
        return
    if not hasattr(numpy, "set_bit_generator"):
        if kept is not None:
            numpy.set_state(kept)
        return
    # One that was loaded in the meantime must not share what it has now.
    put_in(numpy.MT19937() if kept is None else kept)
