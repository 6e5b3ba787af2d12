"""The generators of Python and numpy, which belong to the whole process, beside those of torch.

`HOST.seed` gives them new numbers before a layer is built or runs. `HOST.watching` finds out whether anybody
draws from them meanwhile, although they are seeded again: by a thread that makes data, or by a forward.

They are always seeded, drawn from or not: only what is seeded before its first draw is the same whenever it
runs again. `random.seed` takes 5 us and `numpy.random.seed` 2 us, where to copy their states takes 15 us and
70 us: so no state is kept here. While somebody watches, the number that a seeded generator gives next tells
whether it was drawn from.

Threads share them. A thread that draws in the middle of another's forward changes what that one draws.

numpy is handed another bit generator where that is quicker than to copy states. It does not hold the one
that a thread is reading from, and takes the process down if that is freed meanwhile. So none that was in use
is freed.
"""

import random
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

_NUMPY_SEEDS = 1 << 32


def numpy_random() -> Any:
    """The runtime does not need numpy; a program may."""
    return getattr(sys.modules.get("numpy"), "random", None)


def put_in(bit_generator: Any) -> None:
    """numpy draws from this one, of whatever thread; the one before is left as it is."""
    numpy = numpy_random()
    _in_use.update((numpy.get_bit_generator(), bit_generator))
    numpy.set_bit_generator(bit_generator)


_in_use: set[Any] = set()
"""Bit generators that a thread may be reading from. Few: `seeded` uses its own again."""


def outside_torch() -> object:
    """The states of Python's and numpy's generators, to be compared."""
    numpy = numpy_random()
    return random.getstate(), None if numpy is None else _comparable(numpy.get_state())


class RandomWatch:
    """Result of `HostRandom.watching`, once it is over."""

    is_random = False
    """True if anything was drawn in there, or seeded by anybody else."""


class HostRandom:
    """Python's and numpy's generators of this process."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._own: Any = None
        """A bit generator of numpy to be seeded: that of the user's code outside is left as it is."""
        self._watches = 0
        self._moves = 0
        """Number of times that the generators were found moved while somebody watched."""
        self._stood: object = None
        """Their states when they were looked at last, unless they were seeded since then."""
        self._seeded: tuple[int, object] | None = None
        """With what they were seeded since then, and what they give next."""

    def seed(self, seed: int) -> None:
        """Seed the generators: the next draws depend on this alone."""
        with self._turn:
            if not self._watches:
                self._give(seed)
                return
            is_moved = outside_torch() != self._stood if self._seeded is None else _next() != self._seeded[1]
            self._moves += is_moved
            self._give(seed)
            self._seeded = seed, _next()
            self._give(seed)

    @contextmanager
    def watching(self) -> Generator[RandomWatch]:
        """Sees what any thread draws meanwhile."""
        watch = RandomWatch()
        with self._turn:
            self._look()
            self._watches += 1
            moves = self._moves
        try:
            yield watch
        finally:
            with self._turn:
                self._look()
                self._watches -= 1
                watch.is_random = self._moves != moves

    def part_from(self, bit_generator: Any) -> None:
        """This one of numpy is somebody's from now on: another one is seeded."""
        with self._turn:
            if self._own is bit_generator:
                self._own = None

    def _look(self) -> None:
        """Without drawing: others may be in the middle of it."""
        now = outside_torch()
        expected = self._stood if self._seeded is None else _state_of(self._seeded[0])
        self._moves += now != expected
        self._stood, self._seeded = now, None

    def _give(self, seed: int) -> None:
        random.seed(seed)
        numpy = numpy_random()
        if numpy is None:
            return
        if hasattr(numpy, "set_bit_generator"):
            if self._own is None:
                self._own = numpy.MT19937(0)
            put_in(self._own)
        numpy.seed(seed % _NUMPY_SEEDS)


HOST = HostRandom()


def seed_all(seed: int) -> None:
    """Seed all generators of the process, torch's too: the next draws depend on this alone."""
    torch.manual_seed(seed)
    HOST.seed(seed)


def _next() -> object:
    numpy = numpy_random()
    return random.getrandbits(64), None if numpy is None else numpy.bytes(8)


def _state_of(seed: int) -> object:
    """State that `outside_torch` returns after seeding."""
    numpy = numpy_random()
    drawn = None if numpy is None else _comparable(numpy.RandomState(seed % _NUMPY_SEEDS).get_state())
    return random.Random(seed).getstate(), drawn


def _comparable(state: Any) -> object:
    return (state[0], state[1].tobytes(), *state[2:])
