"""Reads the micro-batches of one source by number: any of them, or one after the other."""

import copy
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from recycle_runtime.data.ahead import DrawnAhead, Ready, as_drawn
from recycle_runtime.data.items import Item, checked, plain_item, same_values
from recycle_runtime.data.private_random import PrivateRandom, item_seed, seeded
from recycle_runtime.data.processes import ProcessBackstage
from recycle_runtime.data.sources import Indexed, Source, Stream
from recycle_runtime.program.errors import ProgramError, blame

_log = logging.getLogger(__name__)
_END: Any = object()
COMPARED = 2
"""Micro-batches of a source that are drawn twice, the first ones that a worker needs."""
_QUICK = 0.001
"""Seconds; to change the generators of a process for others and back takes a tenth of it."""


class NoMoreDataError(ProgramError):
    """A source begins no further epoch."""


class Reader(Protocol):
    """Items of one source; what has been read is kept until `forget`."""

    def item(self, number: int) -> Item: ...

    def expect(self, numbers: Sequence[int]) -> None:
        """These are asked for next, in this order."""
        ...

    def hold(self, numbers: Sequence[int]) -> None:
        """A step with these begins: keep those of them that the user may exchange before it is made again."""
        ...

    def compare(self, numbers: Sequence[int]) -> None:
        """The user's code has run since a step with these was made: ProgramError if others come now."""
        ...

    @property
    def is_apart(self) -> bool:
        """True if processes draw, which the user's code does not reach between two steps."""
        ...

    def approach(self, number: int) -> None:
        """Draw what has to be drawn before this one can be."""
        ...

    def has(self, number: int) -> bool:
        """True if it is there already."""
        ...

    def forget(self, before: int) -> None:
        """Numbers below this one are not asked for any more."""
        ...

    def mark(self, number: int) -> None:
        """A step begins with this number: a place to come back to."""
        ...

    def position(self, number: int) -> Any:
        """Position of the source before it gives this number; None if that need not be known."""
        ...

    def go_to(self, number: int, position: Any) -> None:
        """The next item is this one."""
        ...

    @property
    def epoch(self) -> int | None:
        """Micro-batches of an epoch, where that is known."""
        ...

    def close(self) -> None: ...


def reader_of(
    path: Path,
    source: Source,
    seed: int,
    per_step: int,
    *,
    compares: bool = False,
    ready: Ready = as_drawn,
) -> Reader:
    """Reader for a source. `compares`: its first micro-batches are drawn twice, and must be the same."""
    if isinstance(source, Indexed):
        return IndexedReader(path, source, seed, per_step, compares=compares, ready=ready)
    return StreamReader(path, source, seed, per_step)


class IndexedReader:
    """Draws what is asked for, and what is expected, and nothing else."""

    def __init__(
        self,
        path: Path,
        source: Indexed,
        seed: int,
        per_step: int,
        *,
        compares: bool = False,
        ready: Ready = as_drawn,
    ) -> None:
        self._path, self._source = path, source
        processes = None
        if source.processes is not None:
            processes = ProcessBackstage(source.get, seed, source.processes, path, source.called)
        self._ahead = DrawnAhead(source.get, seed, processes, ready)
        self._items: dict[int, Item] = {}
        self._to_compare = COMPARED if compares else 0
        if source.epoch is not None and source.epoch % per_step:
            _log.info(_ends_within(source.name, source.epoch, per_step))

    def item(self, number: int) -> Item:
        if number not in self._items:
            where = self._source.called(number)
            with blame(self._path, where):
                self._prepare(number)
                in_memory = self._source.in_memory
                drawn = self._source.get(number) if in_memory else self._ahead.take(number)
            self._items[number] = plain_item(drawn) or checked(self._path, drawn, where)
            if not in_memory and self._to_compare:
                self._to_compare -= 1
                self._compare_with_second(number, where)
        return self._items[number]

    def _compare_with_second(self, number: int, where: str) -> None:
        """Each worker draws for itself: what depends on more than the number would be another one there."""
        with blame(self._path, where):
            self._prepare(number)
            second = self._ahead.take(number)
        if not same_values(self._items[number].pair, checked(self._path, second, where).pair):
            raise ProgramError(
                f"{self._path}: {where} is another one when it is drawn again, and each worker draws for "
                "itself",
                "data may depend on its number alone, and on torch.rand, random or numpy.random, which are "
                "seeded by it; not on a generator of its own or a count of calls",
            )

    def hold(self, numbers: Sequence[int]) -> None:
        if self._source.in_memory:
            for number in numbers:
                self.item(number)

    def compare(self, numbers: Sequence[int]) -> None:
        if self._source.in_memory or self.is_apart:
            return
        for number in numbers:
            if (kept := self._items.get(number)) is None:
                continue
            where = self._source.called(number)
            with blame(self._path, where):
                self._prepare(number)
                drawn = self._ahead.draw_again(number)
            if not same_values(kept.pair, checked(self._path, drawn, where).pair):
                raise ProgramError(
                    f"{self._path}: {where} is not what it was when its step was made first, and the step "
                    "has to be made again after a failure",
                    "change data between two steps after report.loss is read, which waits until the step "
                    "counts; or keep it in a list; or give another object in each step",
                )

    @property
    def is_apart(self) -> bool:
        return self._source.processes is not None

    def expect(self, numbers: Sequence[int]) -> None:
        if self._source.in_memory:
            return
        missing = [number for number in numbers if number not in self._items]
        with blame(self._path, self._source.name):
            for number in missing:
                self._prepare(number)
        self._ahead.expect(missing)

    def approach(self, number: int) -> None:
        """Every place is reached at once."""

    def has(self, number: int) -> bool:
        return number in self._items

    def forget(self, before: int) -> None:
        for number in [each for each in self._items if each < before]:
            del self._items[number]

    def mark(self, number: int) -> None:
        """Every place is one to come back to."""

    def position(self, number: int) -> Any:
        return None

    def go_to(self, number: int, position: Any) -> None:
        """Every place is reached at once."""

    @property
    def epoch(self) -> int | None:
        return self._source.epoch

    def close(self) -> None:
        self._ahead.close()

    def _prepare(self, number: int) -> None:
        if self._source.prepare is not None and self._source.processes is None:
            self._source.prepare(number)


class StreamReader:
    """Draws everything from the first, or from the position it was given; keeps what was drawn last.

    Once it draws, it goes on to the end of the step as long as that is quick: what costs most may be to put
    random numbers of its own in the place of the model's.
    """

    def __init__(self, path: Path, source: Stream, seed: int, per_step: int) -> None:
        self._path, self._source, self._seed, self._per_step = path, source, seed, per_step
        self._marks: set[int] = set()
        self._announced = False
        self._oldest = 0
        """The first number that is kept."""
        self._positions: dict[int, Any] = {}
        self._origin = self._where()
        self._begin(0, self._origin)

    def item(self, number: int) -> Item:
        if number < self._next - len(self._recent):
            # The place nearest before it, or the very first.
            nearest = max((each for each in self._positions if each <= number), default=0)
            self._begin(nearest, self._positions.get(nearest, self._origin))
        self._advance(number)
        return self._recent[number - self._next]

    def approach(self, number: int) -> None:
        self._advance(number - 1)

    def expect(self, numbers: Sequence[int]) -> None:
        """It is drawn when it is asked for: what draws it may share random numbers with the model."""

    def hold(self, numbers: Sequence[int]) -> None:
        """Whatever was drawn of a step is kept."""

    def compare(self, numbers: Sequence[int]) -> None:
        """It is not drawn again."""

    @property
    def is_apart(self) -> bool:
        return False

    def has(self, number: int) -> bool:
        return self._next - len(self._recent) <= number < self._next

    def forget(self, before: int) -> None:
        if before == self._oldest:
            return
        self._oldest = before
        self._positions = {number: each for number, each in self._positions.items() if number >= before}
        self._drop()

    def mark(self, number: int) -> None:
        self._marks = {each for each in self._marks if each >= self._next} | {number}
        self._keep_position()

    def position(self, number: int) -> Any:
        if self._source.state is None or not self._recent:
            # One that has drawn nothing would have to begin at the beginning.
            return None
        if number >= self._next:
            self._marks.add(number)
            self._keep_position()
            self.approach(number)
        return self._positions.get(number)

    def go_to(self, number: int, position: Any) -> None:
        if self._source.load is not None and position is not None:
            self._begin(number, position)

    @property
    def epoch(self) -> int | None:
        return None

    def close(self) -> None:
        """It ends when nothing refers to it."""

    def _begin(self, number: int, position: Any) -> None:
        self._random = PrivateRandom(self._seed)
        self._epoch = 0
        self._next = number
        self._recent: deque[Item] = deque()
        self._failed: ProgramError | None = None
        """Error of the next item, if it was found before the item was asked for."""
        self._iterator: Iterator[Any] = iter(())
        load = self._source.load
        if load is not None:
            with blame(self._path, f"load_state_dict of {self._source.name}"):
                load(copy.deepcopy(position))
                self._iterator = self._source.begin()
            self._epoch = 1

    def _where(self) -> Any:
        """A copy of the stream's own word on where it stands."""
        if self._source.state is None:
            return None
        with blame(self._path, f"state_dict of {self._source.name}"):
            return copy.deepcopy(self._source.state())

    def _keep_position(self) -> None:
        if self._next in self._marks and self._source.state is not None:
            self._marks.discard(self._next)
            self._positions[self._next] = self._where()

    def _advance(self, number: int) -> None:
        """Draw this one and all before it."""
        if self._next > number:
            return
        if self._source.load is None:
            with self._random.drawing():
                self._draw_to(number)
            return
        while self._next <= number:
            # Nothing goes on from one item to the next but what its state says.
            with seeded(item_seed(self._seed, self._next)):
                self._draw_next()

    def _draw_to(self, number: int) -> None:
        """And on to the next step, if that is known and quick."""
        step_ends = min((mark for mark in self._marks if mark > number), default=0)
        began = time.perf_counter()
        while self._next <= number:
            self._draw_next()
        while self._next < step_ends and time.perf_counter() - began < _QUICK:
            try:
                self._draw_next()
            except ProgramError as error:
                self._failed = error
                return

    def _draw_next(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        drawn = self._draw()
        item = plain_item(drawn) or checked(self._path, drawn, self._source.called(self._next))
        self._recent.append(item)
        self._next += 1
        self._drop()
        self._keep_position()

    def _drop(self) -> None:
        while self._recent and self._next - len(self._recent) < self._oldest:
            self._recent.popleft()

    def _draw(self) -> Any:
        try:
            drawn = next(self._iterator, _END)
            if drawn is _END:
                self._announce()
                self._iterator = self._source.begin()
                self._epoch += 1
                drawn = next(self._iterator, _END)
        except (Exception, SystemExit):
            with blame(self._path, self._source.called(self._next)):
                raise
        if drawn is _END:
            first = self._epoch == 1
            raise NoMoreDataError(
                f"{self._path}: {self._source.name} yields no micro-batch"
                + ("" if first else f" when it is called for epoch {self._epoch}"),
                "" if first else "each call of batches must start a new iterator",
            )
        return drawn

    def _announce(self) -> None:
        """Once: an epoch has ended."""
        if self._epoch and not self._announced:
            self._announced = True
            _log.info(
                "%s ended%s before micro-batch %d, and began again",
                self._source.name,
                " in the middle of a step," if self._next % self._per_step else "",
                self._next,
            )


def _ends_within(name: str, epoch: int, per_step: int) -> str:
    if epoch < per_step:
        return (
            f"an epoch of {name} has {epoch} micro-batches and a step takes {per_step}: "
            "some are used more than once in a step"
        )
    return (
        f"an epoch of {name} has {epoch} micro-batches and a step takes {per_step}: "
        "epochs end in the middle of a step"
    )
