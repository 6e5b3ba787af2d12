"""Numbers that the code around layers reads from a device, where shapes alone decide them.

    position_ids = torch.arange(length)                   of shapes alone: the same for every micro-batch
    if (torch.diff(position_ids) != 1).any(): ...         a read: waits for all that the device has to do

A forward that reads cannot be captured as CUDA graphs, unless the answers are known before. Models of
`transformers` look like this for packed sequences in every forward. So eager forwards are watched: what was
made of no tensor, or only of such tensors, is constant, and what is read of it is remembered; a forward that
is captured gets these answers. Anything else that is read makes the forward wait, as ever.

While answers are given, the forward does not see that it is being captured: there it would go another way
than it did when it was watched. Layers are computed as if nobody watched.
"""

# The version of a tensor, by which changes in place are noticed, and the mode in force are private.
# pyright: reportPrivateUsage=false

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import tree_leaves

Answer = bool | int | float | complex

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
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
        *("tensor", "as_tensor", "asarray", "new_tensor", "from_numpy", "frombuffer", "from_file"),
        *("cauchy_", "log_normal_", "geometric_", "set_", "set_data", "__set__"),
    ]
)
"""Functions that make, of no tensor, what may differ from one call to the next."""


class OtherReadsError(RuntimeError):
    """A forward reads something else than it did when it was watched."""


class GlueReads(TorchFunctionMode):
    """Watches the code around layers in one forward; with answers, gives them instead of reading."""

    def __init__(self, answers: Sequence[Answer] | None = None) -> None:
        super().__init__()
        self.read: list[Answer] = []
        """What was read of constants so far."""
        self._answers = answers
        self._constants: dict[int, tuple[torch.Tensor, int]] = {}
        """By `id`: a tensor, which is held so that its `id` stays its own, and its version."""

    def begin(self) -> None:
        """The forward begins, perhaps again."""
        self.read.clear()
        self._constants.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        name = getattr(func, "__name__", "")
        given = [leaf for leaf in tree_leaves((args, options)) if isinstance(leaf, torch.Tensor)]
        is_constant = name not in _UNKNOWN and all(map(self._is_constant, given))
        if given and is_constant and name in _READS:
            return self._answered(given[0], lambda: func(*args, **options))
        made = func(*args, **options)
        if is_constant:
            # In place, it may have changed what it was given.
            for leaf in (*given, *tree_leaves(made)):
                if isinstance(leaf, torch.Tensor) and not leaf.is_inference():
                    self._constants[id(leaf)] = leaf, leaf._version
        return made

    def _is_constant(self, tensor: torch.Tensor) -> bool:
        known = self._constants.get(id(tensor))
        return known is not None and known[1] == tensor._version

    def _answered(self, tensor: torch.Tensor, read: Any) -> Any:
        if self._answers is not None:
            if len(self.read) == len(self._answers):
                raise OtherReadsError("its forwards read something else when they are captured")
            self.read.append(self._answers[len(self.read)])
            return self.read[-1]
        with waiting_once(tensor.device):
            self.read.append(read())
        return self.read[-1]


class _Active(threading.local):
    reads: GlueReads | None = None
    is_in: bool = False
    """Whether the code around layers runs now."""


_active = _Active()


@contextmanager
def reads_watched(answers: Sequence[Answer] | None = None) -> Generator[GlueReads]:
    """Around a forward of a chunk in this thread: what the code around its layers reads."""
    reads = _active.reads = GlueReads(answers)
    try:
        if answers is None:
            yield reads
        else:
            with _capture_unseen():
                yield reads
    finally:
        _active.reads = None


@contextmanager
def in_glue() -> Generator[None]:
    """Around the forward of a model: watched, if somebody asked for that."""
    reads = _active.reads
    if reads is None:
        yield
        return
    reads.begin()
    with reads:
        _active.is_in = True
        try:
            yield
        finally:
            _active.is_in = False


@contextmanager
def out_of_glue() -> Generator[None]:
    """Around a layer in such a forward."""
    reads = _active.reads
    if reads is None or _get_current_function_mode() is not reads:
        yield
        return
    _active.is_in = False
    reads.__exit__(None, None, None)
    try:
        yield
    finally:
        reads.__enter__()
        _active.is_in = True


@contextmanager
def waiting_once(device: torch.device) -> Generator[None]:
    """Around what waits for the device in the first forwards only: nobody who looks for that is warned."""
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _capture_unseen() -> Generator[None]:
    """The code around layers in this thread is told that nothing is being captured."""
    own, asked = threading.get_ident(), torch.cuda.is_current_stream_capturing

    def is_capturing() -> bool:
        is_told = threading.get_ident() != own or not _active.is_in
        return is_told and asked()

    torch.cuda.is_current_stream_capturing = is_capturing
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = asked
