"""Draws what will be needed before it is asked for: in a thread, or in processes that a thread listens to.

A thread shares the random numbers of its process with the model. So the first item is drawn on the thread
that asks, which shows whether drawing uses them; and if a later one does, that is noticed and it is drawn
again where it is asked for. Data of that kind is drawn without haste in the background only by processes,
which have random numbers of their own.

Whoever draws in the background also makes an item ready for the device, so that nobody waits for that either.

Python ends without its background threads, and one that is inside torch then takes the process down with it.
So they are asked to end, and waited for, before that.
"""

import atexit
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recycle_runtime.data.private_random import item_seed, seeded
from recycle_runtime.program.host_random import HOST

_log = logging.getLogger(__name__)

Get = Callable[[int], Any]
"""Gives a micro-batch by its number in the whole run, as the user's code makes it."""


Ready = Callable[[Any], Any]
"""Makes an item ready for the device, in the background."""


def as_drawn(item: Any) -> Any:
    """Nothing is to be done."""
    return item


class Raised:
    """In place of an item: what drawing it has raised."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Backstage(Protocol):
    """Draws in the background."""

    def draw(self, numbers: Iterator[int]) -> Iterable[tuple[int, Any]]:
        """Each number with its item, or with what was Raised, or with UNSURE, in any order."""
        ...

    def close(self) -> None: ...


UNSURE: Any = object()
"""In place of an item that may depend on random numbers of the whole process."""


class Ahead:
    """Items by number; those that are expected are there when they are asked for, if all goes well."""

    def __init__(self, backstage: Backstage, ready: Ready = as_drawn) -> None:
        self._backstage, self._ready = backstage, ready
        self._changed = threading.Condition()
        self._wanted: deque[int] = deque()
        self._under_way: set[int] = set()
        self._there: dict[int, Any] = {}
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None
        _all.add(self)

    def expect(self, numbers: Sequence[int]) -> None:
        """These are asked for next, in this order; nothing that comes before all of them is."""
        first = min(numbers, default=0)
        with self._changed:
            self._there = {number: item for number, item in self._there.items() if number >= first}
            self._wanted = deque(number for number in numbers if not self._is_known(number))
            self._begin()

    def take(self, number: int) -> Any:
        """The item, when it is there; or what was Raised, or UNSURE."""
        with self._changed:
            if not self._is_known(number):
                if number in self._wanted:
                    self._wanted.remove(number)
                self._wanted.appendleft(number)
                self._begin()
            self._changed.wait_for(lambda: number in self._there or self._broken is not None)
            if number not in self._there:
                assert self._broken is not None
                return Raised(self._broken)
            return self._there.pop(number)

    def close(self) -> None:
        """Draw no more."""
        self.stop()
        self._backstage.close()

    def stop(self) -> threading.Thread | None:
        """Begin with nothing more; the thread that ends when the item under way is drawn, if there is one."""
        with self._changed:
            self._wanted.clear()
            return self._thread

    def _is_known(self, number: int) -> bool:
        return number in self._there or number in self._under_way

    def _begin(self) -> None:
        if self._thread is None and self._wanted and self._broken is None:
            self._thread = threading.Thread(target=self._work, name="data", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        """By the thread, until nothing is wanted."""
        while True:
            try:
                for number, drawn in self._backstage.draw(iter(self._next, None)):
                    item = drawn if drawn is UNSURE or isinstance(drawn, Raised) else self._ready(drawn)
                    with self._changed:
                        self._under_way.discard(number)
                        self._there[number] = item
                        self._changed.notify_all()
            except BaseException as error:
                with self._changed:
                    self._broken, self._thread = error, None
                    self._changed.notify_all()
                return
            with self._changed:
                if not self._wanted:
                    self._thread = None
                    return

    def _next(self) -> int | None:
        with self._changed:
            if not self._wanted:
                return None
            number = self._wanted.popleft()
            self._under_way.add(number)
            return number


_all: "weakref.WeakSet[Ahead]" = weakref.WeakSet()
_LONGEST_ITEM = 10.0
"""Seconds that an item under way may take when Python ends."""


@atexit.register
def end_threads() -> None:
    """Those that draw ahead, before Python ends."""
    for thread in [ahead.stop() for ahead in list(_all)]:
        if thread is not None:
            thread.join(_LONGEST_ITEM)


class InThread:
    """Draws in the thread itself, with no random numbers of the process."""

    def __init__(self, get: Get, turn: threading.Lock) -> None:
        """`turn` is held while something is drawn: the user's code need not stand two calls at once."""
        self._get, self._turn = get, turn

    def draw(self, numbers: Iterator[int]) -> Iterator[tuple[int, Any]]:
        for number in numbers:
            with self._turn:
                item = self._drawn(number)
            yield number, item

    def close(self) -> None:
        """The thread ends by itself."""

    def _drawn(self, number: int) -> Any:
        watch = _Watch()
        with HOST.watching() as host:
            try:
                with watch:
                    item = self._get(number)
            except BaseException as error:
                item = Raised(error)
        return UNSURE if watch.has_drawn or host.is_random else item


class _DrawsRandomError(RuntimeError):
    """An op was about to use the random numbers of the process."""


class _Watch(TorchDispatchMode):
    """Lets no op of this thread use torch's own generator."""

    has_drawn = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Collection[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            given = (*args, *options.values())
            if not any(isinstance(value, torch.Generator) for value in given):
                self.has_drawn = True
                raise _DrawsRandomError(f"{func} draws random numbers")
        return func(*args, **options)


class DrawnAhead:
    """Items of one source by number, for the thread that runs the model."""

    def __init__(
        self, get: Get, seed: int, processes: Backstage | None = None, ready: Ready = as_drawn
    ) -> None:
        self._get, self._seed, self._ready = get, seed, ready
        self._turn = threading.Lock()
        self._ahead = None if processes is None else Ahead(processes, ready)
        self._is_random = False
        self._expected: Sequence[int] = ()

    def expect(self, numbers: Sequence[int]) -> None:
        """These are asked for next, in this order."""
        self._expected = numbers
        if self._ahead is not None:
            self._ahead.expect(numbers)

    def take(self, number: int) -> Any:
        """The item as the user's code gives it; what that raises is raised here."""
        if self._ahead is None:
            return self._drawn_here(number)
        item = self._ahead.take(number)
        if isinstance(item, Raised):
            raise item.error
        return self._drawn_here(number) if item is UNSURE else item

    def draw_again(self, number: int) -> Any:
        """The item as the user's code gives it now."""
        with self._turn, seeded(item_seed(self._seed, number)):
            return self._get(number)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _drawn_here(self, number: int) -> Any:
        with self._turn, seeded(item_seed(self._seed, number), watched=True) as drawn:
            item = self._get(number)
        if drawn.is_random and not self._is_random:
            _log.info(
                "the data draws random numbers: a thread cannot draw it in the background, "
                "processes can (workers=1 or more)"
            )
            self._is_random, self._ahead = True, None
        elif not self._is_random and self._ahead is None:
            self._ahead = Ahead(InThread(self._get, self._turn), self._ready)
            self._ahead.expect([each for each in self._expected if each != number])
        return item
