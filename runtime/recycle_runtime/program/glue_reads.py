"""Numbers that the code around layers reads from a device, where shapes alone decide them.

    places = torch.arange(length)                   of shapes alone: the same for every micro-batch
    if (torch.diff(places) != 1).any(): ...         a read: waits for all that the device has to do

Models of `transformers` look like this for packed sequences in every forward. A host that waits cannot give
the device the next work in time, and a forward that waits cannot be captured as CUDA graphs. So the code
around layers is watched: what was made of no tensor, or only of such tensors, is constant. It has a name,
the call that made it, and what has been read of a constant once is the answer to every later read of one
with the same name. Anything else is read as ever.

Counts of indices are another way to wait, which is often not needed: see `glue_counts`.

Only as much of a forward is watched as had such reads when its inputs looked like this before. Layers are
computed as if nobody watched. While a forward is captured, answers have to be known; and it does not see that
it is being captured: it would go another way than it does eagerly.
"""

# The version of a tensor, by which changes in place are noticed, and the mode in force are private.
# pyright: reportPrivateUsage=false

import threading
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import tree_leaves

from recycle_runtime.program.glue_counts import IndexCounts

_WATCHED_WHOLE = 2
"""Forwards, before it is known how far such reads go."""
_MOST_NAMES = 1 << 14
_READS = frozenset(["__bool__", "__int__", "__index__", "__float__", "__complex__", "item", "is_nonzero"])
RANDOM = frozenset(
    [
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
        *("rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal"),
        *("bernoulli", "multinomial", "poisson"),
        *("bernoulli_", "exponential_", "normal_", "random_", "uniform_"),
    ]
)
"""Functions that draw numbers."""
_UNKNOWN = RANDOM | frozenset(
    [
        *("empty_like", "new_empty", "new_empty_strided", "resize_", "resize_as_", "new_tensor"),
        *("cauchy_", "log_normal_", "geometric_", "set_", "set_data", "__set__", "rrelu", "rrelu_"),
    ]
)
"""Functions of tensors whose results are more than what they were given says."""
_MAKERS = frozenset(
    [
        *("arange", "range", "zeros", "ones", "full", "eye", "linspace", "logspace", "scalar_tensor"),
        *("tril_indices", "triu_indices"),
    ]
)
"""Functions that make constants of no tensor."""
_PLAIN = (int, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None), type(...))
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class OtherReadsError(RuntimeError):
    """A forward reads something else when it is captured than it did before."""


class _VariesError(Exception):
    """Raised for a value that is more than its name says."""


_names: dict[Hashable, int] = {}
"""A number for each call that made a constant."""
_answers: dict[Hashable, Any] = {}


class _GlueReads(TorchFunctionMode):
    """Watches the code around layers in one forward, until so many modules of layers have been called."""

    def __init__(self, until: int | None) -> None:
        super().__init__()
        self.until = until
        self.calls = 0
        self.last = -1
        """Calls before the last read of a constant, or count."""
        self.is_in = False
        """True while the code around layers runs."""
        self._constants: dict[int, tuple[torch.Tensor, int, int]] = {}
        """By `id`: a tensor, which is held so that its `id` stays its own, its version and its name."""
        self._has_tensors = False
        """True if a call that is looked at was given any."""
        self._counts = IndexCounts()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        self._has_tensors = False
        try:
            call = func, self._named(args), self._named(options) if options else ()
        except _VariesError:
            return self._varying(func, args, options)
        name: str = getattr(func, "__name__", "")
        has_tensors = self._has_tensors
        if name in _READS and has_tensors:
            return self._answered(call, lambda: func(*args, **options))
        made = func(*args, **options)
        known = name not in _UNKNOWN if has_tensors else name in _MAKERS
        if known and not isinstance(func, _OPERATORS):
            self._know(call, (args, options), made)
        return made

    def _varying(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        name: str = getattr(func, "__name__", "")
        counted = self._counts.counted(name, args, options)
        if counted is not None:
            self.last = self.calls
            return counted
        made = func(*args, **options)
        if not isinstance(func, _OPERATORS):
            self._counts.see(name, args, options, made)
        return made

    def _know(self, call: Hashable, given: Any, made: Any) -> None:
        for place, leaf in enumerate(tree_leaves(made)):
            if isinstance(leaf, torch.Tensor) and not leaf.is_inference():
                self._call_it((call, place, leaf.dtype, leaf.device), leaf)
        for place, leaf in enumerate(tree_leaves(given)):
            if isinstance(leaf, torch.Tensor) and leaf._version != self._constants[id(leaf)][1]:
                # Changed in place.
                self._call_it((call, -1 - place), leaf)

    def _call_it(self, name: Hashable, tensor: torch.Tensor) -> None:
        if len(_names) >= _MOST_NAMES:
            forget_reads()
        number = _names.get(name)
        if number is None:
            number = _names[name] = _next_number()
        self._constants[id(tensor)] = tensor, tensor._version, number

    def _named(self, value: Any) -> Hashable:
        """Name of a value; _VariesError if it is more than can be said."""
        kind: Any = type(value)
        if kind is tuple or kind is list or kind is torch.Size:
            return tuple([self._named(each) for each in value])
        if isinstance(value, torch.Tensor):
            known = self._constants.get(id(value))
            if known is None or known[1] != value._version:
                raise _VariesError
            self._has_tensors = True
            return torch.Tensor, known[2]
        if kind is float or kind is bool or kind is complex:
            return kind, repr(value)
        if kind is slice:
            return slice, self._named((value.start, value.stop, value.step))
        if kind is dict:
            named = cast(dict[Any, Any], value)
            return tuple([(each, self._named(named[each])) for each in named])
        if kind in _PLAIN:
            return value
        raise _VariesError

    def _answered(self, call: Hashable, read: Callable[[], Any]) -> Any:
        self.last = self.calls
        if call not in _answers:
            if _active.is_captured:
                raise OtherReadsError("its forwards read something else when they are captured")
            _answers[call] = read()
        return _answers[call]


def forget_reads() -> None:
    """All answers. Numbers are not given twice: the constants of a forward that runs keep theirs."""
    _names.clear()
    _answers.clear()


_count = 0


def _next_number() -> int:
    global _count
    _count += 1
    return _count


class _Active(threading.local):
    reads: _GlueReads | None = None
    is_captured: bool = False
    is_wanted: bool = False
    """True if forwards on any device are watched."""


_active = _Active()


class ReadsSeen:
    """Extent to which forwards have to be watched, by what their inputs look like."""

    def __init__(self) -> None:
        self._times: dict[Hashable, int] = {}
        self._until: dict[Hashable, int] = {}

    @contextmanager
    def in_glue(self, inputs: Hashable, device: torch.device) -> Generator[None]:
        """Around the forward of a model."""
        is_captured, times = _active.is_captured, self._times.get(inputs, 0)
        until = None if is_captured or times < _WATCHED_WHOLE else self._until[inputs]
        if (device.type != "cuda" and not _active.is_wanted) or until == -1:
            yield
            return
        reads = _active.reads = _GlueReads(until)
        _enter(reads)
        try:
            yield
        finally:
            _active.reads = None
            if reads.is_in:
                _leave(reads)
        self._times[inputs] = times + 1
        self._until[inputs] = max(reads.last, self._until.get(inputs, -1))


@contextmanager
def out_of_glue() -> Generator[None]:
    """Around a layer in such a forward."""
    reads = _active.reads
    if reads is None or _get_current_function_mode() is not reads:
        yield
        return
    _leave(reads)
    try:
        yield
    finally:
        reads.calls += 1
        if reads.until is None or reads.calls <= reads.until:
            _enter(reads)


def _enter(reads: _GlueReads) -> None:
    reads.__enter__()
    reads.is_in = True


def _leave(reads: _GlueReads) -> None:
    reads.is_in = False
    reads.__exit__(None, None, None)


@contextmanager
def reads_wanted() -> Generator[None]:
    """Forwards in this thread are watched wherever they run."""
    _active.is_wanted = True
    try:
        yield
    finally:
        _active.is_wanted = False


@contextmanager
def captured_reads() -> Generator[None]:
    """Around a forward that is captured in this thread."""
    own, asked = threading.get_ident(), torch.cuda.is_current_stream_capturing

    def is_capturing() -> bool:
        is_unseen = threading.get_ident() == own and _active.reads is not None and _active.reads.is_in
        return not is_unseen and asked()

    _active.is_captured = True
    torch.cuda.is_current_stream_capturing = is_capturing
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked
        _active.is_captured = False
