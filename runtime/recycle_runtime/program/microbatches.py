"""The micro-batches of a program by number: step n's are items n * per_step and on, in the program's order.

    batches(seed):   0 1 2 3 | 4 5 6 7 | 8 ...        per_step = 4
                     step 0    step 1    step 2

A run that goes on from a checkpoint may take more or fewer of them in a step than the one before it. Then its
first step begins with the first item that has not been used:

    batches(seed):   0 1 2 3 | 4 5 6 7 | 8 9 | 10 ... per_step = 2, first_step = 2, first_item = 8
                     step 0    step 1    step 2

A plan may split every micro-batch in two along the first dimension of its tensors: part 1 of 2 is the second
half of its samples.

Every worker draws the same sequence and takes from it what its stream asks for. A short memory holds this
step and the one before, since a step may be run again; anything older is found by starting from the first.
"""

import random
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch

from recycle_runtime.program.errors import ProgramError, blame
from recycle_runtime.program.loading import Program, kind_of


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


_END = object()


class _Entry(NamedTuple):
    signature: str
    samples: int | None
    """In each of its tensors; None where they differ."""
    item: tuple[Any, Any] | None
    versions: tuple[int, ...]
    """How often each tensor had been changed in place when it was drawn."""


class MicroBatches:
    """Random access to a program's micro-batches, quick where steps come one after another."""

    def __init__(
        self,
        program: Program,
        seed: int,
        per_step: int,
        *,
        keep_items: bool = True,
        first_step: int = 0,
        first_item: int = 0,
    ) -> None:
        self._program, self._seed, self._per_step = program, seed, per_step
        self.keeps_items = keep_items
        """A worker that needs neither inputs nor targets keeps signatures alone."""
        self.count_from(first_step, first_item)
        self._start()

    def count_from(self, first_step: int, first_item: int) -> None:
        """Steps begin with this one, and it begins with this item."""
        self._first_step, self._first_item = first_step, first_item

    @property
    def per_step(self) -> int:
        """Whole micro-batches of a step, however a plan splits them."""
        return self._per_step

    def item(self, step: int, index: int, part: int = 0, parts: int = 1) -> tuple[Any, Any]:
        """(input, target) of one micro-batch, or of one part of it; do not change them in place."""
        whole = self._whole(step, index)
        samples = self._entry(step, index).samples
        return whole if parts == 1 or not _is_divided(samples, parts) else _part(whole, part, parts)

    def weight(self, step: int, index: int, part: int, parts: int) -> float:
        """What the loss of a part counts in that of its micro-batch: as its share of the samples.

        What cannot be split is computed whole for every part, and counts in the first.
        """
        samples = self._entry(step, index).samples
        if samples is None or not _is_divided(samples, parts):
            return float(part == 0)
        return _part_size(samples, part, parts) / samples

    def can_halve(self, step: int) -> bool:
        """Whether all micro-batches up to the end of this step had the same even number of samples."""
        self._entry(step, self._per_step - 1)
        (samples,) = self._counts if len(self._counts) == 1 else (None,)
        return samples is not None and samples % 2 == 0

    def _whole(self, step: int, index: int) -> tuple[Any, Any]:
        if not self.keeps_items:
            raise ValueError("these micro-batches keep only signatures")
        entry = self._entry(step, index)
        if entry.item is None:
            # Drawn when only signatures were kept.
            self._start()
            entry = self._entry(step, index)
        assert entry.item is not None
        if entry.versions != _versions(entry.item):
            raise ProgramError(
                f"{self._program.path}: micro-batch {index} of step {step} was changed in place",
                "batches must yield new tensors, and neither stages nor loss may change what they are given",
            )
        return entry.item

    def signature(self, step: int, index: int, part: int = 0, parts: int = 1) -> str:
        """Types and shapes of one micro-batch's input, such as `int64[4,128]`; of a part, its samples too."""
        entry = self._entry(step, index)
        if entry.samples is None or parts == 1 or not _is_divided(entry.samples, parts):
            return entry.signature
        return f"{entry.signature} {_part_size(entry.samples, part, parts)}/{entry.samples}"

    def _entry(self, step: int, index: int) -> _Entry:
        if step < self._first_step or not 0 <= index < self._per_step:
            raise IndexError(
                f"step {step}, micro-batch {index}: a step has {self._per_step}, "
                f"and the first one is {self._first_step}"
            )
        number = self._first_item + (step - self._first_step) * self._per_step + index
        if number < self._next - len(self._recent):
            self._start()
        if self._next <= number:
            with self._random.drawing():
                while self._next <= number:
                    self._advance()
        return self._recent[number - self._next]

    def _start(self) -> None:
        self._random = PrivateRandom(self._seed)
        self._epoch = 0
        self._next = 0
        self._recent: deque[_Entry] = deque()
        self._counts: set[int | None] = set()
        """Of samples in the micro-batches drawn so far."""
        self._iterator: Iterator[Any] = iter(())

    def _advance(self) -> None:
        item = self._draw()
        step = (self._next - self._first_item) // self._per_step
        oldest = self._first_item + (step - 1) * self._per_step
        self._next += 1
        signature = shape_signature(item[0])
        kept = item if self.keeps_items else None
        samples = _samples(item)
        self._counts.add(samples)
        self._recent.append(_Entry(signature, samples, kept, () if kept is None else _versions(item)))
        while self._next - len(self._recent) < oldest:
            self._recent.popleft()

    def _draw(self) -> tuple[Any, Any]:
        where = f"micro-batch {self._next} of batches({self._seed})"
        with blame(self._program.path, where):
            drawn = next(self._iterator, _END)
            if drawn is _END:
                self._iterator = self._program.batches(self._seed)
                self._epoch += 1
                drawn = next(self._iterator, _END)
        if drawn is _END:
            first = self._epoch == 1
            raise ProgramError(
                f"{self._program.path}: batches({self._seed}) yields no micro-batch"
                + ("" if first else f" when it is called for epoch {self._epoch}"),
                "" if first else "each call of batches must start a new iterator",
            )
        return self._checked(drawn, where)

    def _checked(self, drawn: Any, where: str) -> tuple[Any, Any]:
        if not isinstance(drawn, tuple | list) or len(cast(list[Any], drawn)) != 2:
            raise ProgramError(
                f"{self._program.path}: {where} must be a pair (input, target), got {_describe(drawn)}"
            )
        inputs, target = cast(tuple[Any, Any], tuple(cast(list[Any], drawn)))
        parts = _parts(inputs)
        if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
            raise ProgramError(
                f"{self._program.path}: the input of {where} must be a tensor or a tuple of tensors, "
                f"got {_describe(inputs)}"
            )
        return inputs, target


def _is_divided(samples: int | None, parts: int) -> bool:
    return samples is not None and samples >= parts


def _part_size(samples: int, part: int, parts: int) -> int:
    """The first parts have one more where it does not come out even, as torch splits them."""
    return samples // parts + (part < samples % parts)


def _samples(item: Any) -> int | None:
    """In every tensor, along its first dimension; None if tensors differ, have none, or there are other
    values, of which nobody knows whose they are."""
    values = list(_leaves(item))
    if not all(isinstance(value, torch.Tensor) and value.dim() > 0 for value in values):
        return None
    counts = {len(value) for value in values}
    return counts.pop() if len(counts) == 1 and 0 not in counts else None


def _part(value: Any, part: int, parts: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tensor_split(parts)[part]
    if isinstance(value, dict):
        named = cast(dict[Any, Any], value)
        return {key: _part(each, part, parts) for key, each in named.items()}
    several = cast(list[Any] | tuple[Any, ...], value)
    made = [_part(each, part, parts) for each in several]
    if isinstance(value, tuple):
        # A named tuple takes its fields one by one.
        return type(several)(*made) if hasattr(several, "_fields") else tuple(made)
    return made


def _leaves(value: Any) -> Iterator[Any]:
    """What is in it, through tuples, lists and dictionaries."""
    if isinstance(value, tuple | list | dict):
        parts = cast(dict[Any, Any], value).values() if isinstance(value, dict) else cast(list[Any], value)
        for part in parts:
            yield from _leaves(part)
    else:
        yield value


def shape_signature(inputs: Any) -> str:
    """Types and shapes of a tensor or several, the same text on every worker."""
    return " ".join(
        f"{str(part.dtype).removeprefix('torch.')}[{','.join(map(str, part.shape))}]"
        for part in _parts(inputs)
    )


def _parts(inputs: Any) -> list[Any]:
    return list(cast(list[Any], inputs)) if isinstance(inputs, tuple | list) else [inputs]


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        parts = cast(list[Any], value)
        return f"a {type(parts).__name__} of {len(parts)}: {', '.join(type(part).__name__ for part in parts)}"
    return kind_of(value)


def _versions(value: Any) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in _tensors(value) if not tensor.is_inference())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor))
