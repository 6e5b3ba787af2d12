"""The micro-batches of a run by number: step n's are numbers n * per_step and on, in the program's order.

    micro-batch:     0 1 2 3 | 4 5 6 7 | 8 ...        per_step = 4
                     step 0    step 1    step 2

A run that goes on from a checkpoint may take more or fewer of them in a step than the one before it. Then its
first step begins with the first one that has not been used:

    micro-batch:     0 1 2 3 | 4 5 6 7 | 8 9 | 10 ... per_step = 2, first_step = 2, first_item = 8
                     step 0    step 1    step 2

A plan may split every micro-batch in two along the first dimension of its tensors: part 1 of 2 is the second
half of its samples.

A worker draws what its stream loads and nothing else, in the background where the source allows it, and ahead
of the step where the user's code does not run before it; it gets the shapes of other micro-batches. Items
of this step and the one before are kept, since a step may be run again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from recycle_runtime.data.ahead import Ready, as_drawn
from recycle_runtime.data.items import Item, ItemSpec
from recycle_runtime.data.reading import Reader, reader_of
from recycle_runtime.data.sources import Indexed, Source, Stream, as_source, source_of
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program

_ACCEPT = "--accept-changes resumes from it all the same"


class OtherDataError(ProgramError):
    """Not the data that the run was begun with."""


class _Given(NamedTuple):
    """A source, and the first step that uses it."""

    from_step: int
    source: Any
    reader: Reader


class MicroBatches:
    """Random access to a program's micro-batches, quick where steps come one after another."""

    def __init__(
        self,
        program: Program,
        seed: int,
        per_step: int,
        *,
        first_step: int = 0,
        first_item: int = 0,
        ready: Ready = as_drawn,
    ) -> None:
        self._program, self._seed, self._per_step, self._ready = program, seed, per_step, ready
        self._lock = threading.Lock()
        self._given: list[_Given] = []
        """In the order of their steps; other threads look at it: the list is replaced, and never changed."""
        self._looks: dict[tuple[int, int], ItemSpec] = {}
        """Of micro-batches that were not drawn here, by step and index."""
        self._counts: set[int | None] = set()
        """Of samples in the micro-batches drawn so far."""
        self._waited = 0.0
        self._compares = True
        self._read_of: tuple[int, list[_Given]] | None = None
        """The step that was read from last, and what was given then."""
        self._read_items: dict[int, Item] = {}
        """Items that were read of that step, by index."""
        self._compared: int | None = None
        """The step that is made again after the user's code has run, if that comes next."""
        self._position: tuple[int, Any] | None = None
        """Number and position of the source to begin at, if they are given."""
        self._made_with: tuple[str, int] | None = None
        """Source that the run goes on from, and micro-batches in its data's epoch, until data is opened."""
        self.on_wait: Callable[[int, int], None] | None = None
        """Called with the beginning and the end of every wait, in nanoseconds of the monotonic clock."""
        self.ends_at: int | None = None
        """The step that is not made any more, if that is known; nothing is drawn ahead for it."""
        self.count_from(first_step, first_item)

    def count_from(self, first_step: int, first_item: int) -> None:
        """Steps begin with this one, and it begins with this item."""
        self._first_step, self._first_item = first_step, first_item
        self._read_of = None

    def use(self, source: Any, from_step: int) -> None:
        """Take the micro-batches of this step and later ones from here, whatever the program defines.

        Called again with the same source it changes nothing; steps before keep what they had. May be called
        by another thread than the one that trains.
        """
        with self._lock:
            kept = [given for given in self._given if given.from_step <= from_step]
            if kept and kept[-1].source is source:
                self._given = kept
                return
            # One that takes turns with another goes on.
            found = next((given.reader for given in self._given if given.source is source), None)
            reader = found or self._opened_on(source)
            kept = [given for given in kept if given.from_step < from_step]
            self._given = [*kept, _Given(from_step, source, reader)]

    def _opened_on(self, source: Any) -> Reader:
        """As the user gave it."""
        made = as_source(self._program.path, source, "the data", self._seed)
        reader = self._reader_of(made)
        self._check_epoch(reader)
        if self._position is not None and not self._given:
            reader.go_to(*self._position)
        return reader

    def _reader_of(self, source: Source) -> Reader:
        """The first one looks whether data can be drawn by number; a script may give more of them."""
        compares, self._compares = self._compares, False
        return reader_of(
            self._program.path, source, self._seed, self._per_step, compares=compares, ready=self._ready
        )

    @property
    def per_step(self) -> int:
        """Whole micro-batches of a step, however a plan splits them."""
        return self._per_step

    def item(self, step: int, index: int, part: int = 0, parts: int = 1) -> tuple[Any, Any]:
        """(input, target) of one micro-batch, or of one part of it; do not change them in place."""
        item = self._read(step, index)
        if not item.is_as_drawn:
            raise ProgramError(
                f"{self._program.path}: micro-batch {index} of step {step} was changed in place",
                "data must be new tensors, and neither stages nor loss may change what they are given",
            )
        return item.part(part, parts)

    def made_before(self, step: int) -> None:
        """This step is made again, and the user's code may have run since."""
        self._compared = step

    def expect(self, step: int, indices: Sequence[int]) -> None:
        """A step begins: these are its micro-batches that are loaded here, in this order, and probably those
        of the next step too."""
        self._looks = {place: look for place, look in self._looks.items() if place[0] >= step - 1}
        self._drop_readers(step)
        self._read_of = None
        for given in self._given:
            given.reader.forget(self._oldest(step))
        first = self._number(step, 0)
        everything = range(first, first + self._per_step)
        # Nothing is opened that is not read: a script may not have given its data yet.
        if (reader := self._reader(step) if indices else self._opened(step)) is None:
            return
        if self._compared == step:
            reader.compare(everything)
        self._compared = None
        # Also where nothing is read now: after a failure it may be.
        reader.hold(everything)
        if not indices:
            return
        reader.mark(first)
        reader.mark(first + self._per_step)
        is_last = self.ends_at is not None and step + 1 >= self.ends_at
        # Before the user's code runs, its data may not be what it will be.
        crosses = reader.is_apart or not self._program.has_body or self._program.draws_ahead
        numbers = [first + index for index in indices]
        if crosses and not is_last and self._reader(step + 1) is reader:
            numbers += [first + self._per_step + index for index in indices]
        reader.expect(numbers)

    def look(self, step: int, index: int) -> ItemSpec:
        """Shapes and types of a micro-batch; it is drawn if they are not known from another worker."""
        if (told := self._looks.get((step, index))) is not None:
            return told
        return self._read(step, index).look

    def is_known(self, step: int, index: int) -> bool:
        """True if it is known what it looks like without drawing anything."""
        if (step, index) in self._looks:
            return True
        reader = self._opened(step)
        return reader is not None and reader.has(self._number(step, index))

    def tell(self, step: int, index: int, look: ItemSpec) -> None:
        """Record the shapes and types of a micro-batch that another worker has drawn."""
        self._looks[step, index] = look

    def signature(self, step: int, index: int, part: int = 0, parts: int = 1) -> str:
        """Types and shapes of one micro-batch's input, such as `int64[4,128]`; of a part, its samples too."""
        return self.look(step, index).of_part(part, parts)

    def weight(self, step: int, index: int, part: int, parts: int) -> float:
        """Weight of the loss of a part in that of its micro-batch."""
        return self.look(step, index).weight(part, parts)

    def can_halve(self, step: int, index: int) -> bool:
        """True if this micro-batch, and all that were drawn here, have the same even number of samples."""
        self.look(step, index)
        (samples,) = self._counts if len(self._counts) == 1 else (None,)
        return samples is not None and samples % 2 == 0

    def example(self) -> tuple[Any, Any] | None:
        """Some micro-batch, drawn apart from all others; None of a stream, which would not be the same after.

        For another thread than the one that trains.
        """
        with self._lock:
            given = self._given[-1].source if self._given else None
        if given is None:
            source = source_of(self._program, self._seed)
        else:
            source = as_source(self._program.path, given, "the data", self._seed)
        if isinstance(source, Stream) and source.load is not None:
            return None
        number = self._first_item if isinstance(source, Indexed) else 0
        reader = reader_of(self._program.path, source, self._seed, self._per_step)
        try:
            return reader.item(number).pair
        finally:
            reader.close()

    def take_waited(self) -> float:
        """Seconds that somebody has waited here since this was asked last."""
        waited, self._waited = self._waited, 0.0
        return waited

    def position(self, step: int) -> Any:
        """Position of the source when a step begins, for `go_to`; None if it need not be sent."""
        reader = self._opened(step)
        return None if reader is None else reader.position(self._number(step, 0))

    def go_to(self, step: int, position: Any) -> None:
        """Go on from where another worker, or an earlier run, stood when this step began."""
        number, reader = self._number(step, 0), self._opened(step)
        self._position = number, position
        self._read_of = None
        if reader is not None:
            reader.go_to(number, position)

    def epoch(self, step: int) -> int | None:
        """Micro-batches in an epoch of the data that a step is read from, if that is known by now."""
        reader = self._opened(step)
        return None if reader is None else reader.epoch

    def must_have(self, epoch: int, source: str) -> None:
        """The data to come has so many micro-batches in an epoch, as that had which `source` was made with;
        OtherDataError when other data is opened, unless it does not say."""
        self._made_with = source, epoch

    def _check_epoch(self, reader: Reader) -> None:
        made_with, self._made_with = self._made_with, None
        if made_with is not None and reader.epoch not in (None, made_with[1]):
            reader.close()
            raise OtherDataError(
                f"{made_with[0]}: made with data of {made_with[1]} micro-batches in an epoch, and that of "
                f"this run has {reader.epoch}: {_ACCEPT}"
            )

    def approach(self, step: int) -> None:
        """Draw what has to be drawn before the first micro-batch of a step can be, if the program says what.

        A script gives its data only when it asks for a step.
        """
        if self._made_with is not None and not self._program.data_comes_later:
            self._reader(step)
        if self._program.gives_data == "batches":
            self._reader(step).forget(self._oldest(step))
            self._reader(step).approach(self._number(step, 0))

    def close(self) -> None:
        """Draw no more."""
        for given in self._given:
            given.reader.close()

    def _read(self, step: int, index: int) -> Item:
        """Asked for several times for every micro-batch."""
        given = self._given
        if self._read_of is None or self._read_of[0] != step or self._read_of[1] is not given:
            self._reader(step).forget(self._oldest(step))
            self._read_of, self._read_items = (step, self._given), {}
        if (item := self._read_items.get(index)) is None:
            item = self._read_items[index] = self._read_anew(step, index)
        return item

    def _read_anew(self, step: int, index: int) -> Item:
        number, reader = self._number(step, index), self._reader(step)
        began = time.monotonic_ns()
        try:
            item = reader.item(number)
        except ProgramError as error:
            # Also where a receive needs to know what the micro-batch looks like.
            error.doing = "load"
            raise
        ended = time.monotonic_ns()
        self._waited += (ended - began) / 1e9
        if self.on_wait is not None:
            self.on_wait(began, ended)
        self._counts.add(item.look.samples)
        return item

    def _opened(self, step: int) -> Reader | None:
        """Reader of the micro-batches of a step, if data for it has been opened."""
        for given in reversed(self._given):
            if given.from_step <= step:
                return given.reader
        return None

    def _reader(self, step: int) -> Reader:
        found = self._opened(step)
        if found is None:
            # A script gives the same with its first step.
            given = self._program.data(self._seed) if self._program.gives_data == "data" else None
            if given is not None:
                source = as_source(self._program.path, given, f"data({self._seed})", self._seed)
            else:
                source = source_of(self._program, self._seed)
            found = self._reader_of(source)
            self._check_epoch(found)
            if self._position is not None:
                number, position = self._position
                found.go_to(number, position)
            with self._lock:
                self._given = [_Given(self._first_step, given, found), *self._given]
        return found

    def _drop_readers(self, step: int) -> None:
        """Those that neither this step nor the one before it uses."""
        with self._lock:
            starts = [given.from_step for given in self._given]
            old = sum(following <= step - 1 for following in starts[1:])
            dropped, self._given = self._given[:old], self._given[old:]
            in_use = [given.reader for given in self._given]
        for given in dropped:
            if given.reader not in in_use:
                given.reader.close()

    def _oldest(self, step: int) -> int:
        """The number of the first micro-batch that may still be needed in a step: one of the step before."""
        return self._number(max(step - 1, self._first_step), 0)

    def _number(self, step: int, index: int) -> int:
        if step < self._first_step or not 0 <= index < self._per_step:
            raise IndexError(
                f"step {step}, micro-batch {index}: a step has {self._per_step}, "
                f"and the first one is {self._first_step}"
            )
        return self._first_item + (step - self._first_step) * self._per_step + index
