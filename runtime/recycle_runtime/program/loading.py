"""The user's program: a Python file that says what to train.

    layers() -> [(name, nn.Module), ...]        the model; one tensor or a tuple in and out; layers chain
    loss(output, target) -> scalar tensor       the mean over the micro-batch
    batches(seed) -> iterator                   micro-batches (input, target), the same for the same seed
    optimizer(parameters) -> Optimizer          a torch.optim.Optimizer
    CLIP_NORM = 1.0                             optional: clip gradients by the norm of the whole model
    WEIGHTS = "gpt2/"                           optional: begin with these, by the names of the whole model

In place of `layers` a program may give

    build_layers(first, last) -> the same       layers first .. last - 1 of LAYER_COUNT, and no others
    build_stage(stage, stages) -> nn.Module     whole stages, for jobs that are never cut anew

A layer that gives a tuple gives the next one as many arguments. Each of the three may have a keyword `group`:
the process group of the worker's tensor-parallel ranks. Of all that a worker reads, this file alone is
executed. Whether it defines what it should is found out before anything is built.
"""

import inspect
import math
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from recycle_runtime.program.errors import ProgramError, blame, place, syntax_sentence
from recycle_runtime.weights.named import Weights, open_weights
from recycle_runtime.weights.safetensors import WeightsError

MODEL: dict[str, tuple[str, ...]] = {
    "build_layers": ("first", "last"),
    "layers": (),
    "build_stage": ("stage", "stages"),
}
"""How a program may give its model, and what each is called with; the first that it defines counts."""
NEEDED = {
    "loss": ("output", "target"),
    "batches": ("seed",),
    "optimizer": ("parameters",),
}
"""The names that a program defines beside the model, and what each is called with."""


def check_names(path: Path, names: Mapping[str, Any]) -> str:
    """How the program gives its model; raise for the first thing that keeps it from being called so."""
    given = [name for name in MODEL if name in names]
    missing = [name for name in NEEDED if name not in names]
    if missing or not given:
        wanted = missing if given else ["layers", *missing]
        raise ProgramError(f"{path}: it does not define {_listed(wanted)}", _hint(wanted, names))
    for name, arguments in NEEDED.items():
        _check_call(path, name, names[name], arguments)
    # Programs have always been free to call a number or a helper `layers`.
    for name in given[:-1]:
        if _can_be_called(name, names[name]):
            return name
    _check_call(path, given[-1], names[given[-1]], MODEL[given[-1]])
    return given[-1]


def takes_group(function: Callable[..., Any]) -> bool:
    """Whether what gives the model has a parameter `group`."""
    signature = _signature(function)
    return signature is not None and "group" in signature.parameters


def layer_count(path: Path, names: Mapping[str, Any]) -> int | None:
    """Of all layers, where the program says so; the only way to know without building them."""
    value = names.get("LAYER_COUNT")
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise ProgramError(f"{path}: LAYER_COUNT must be a whole number from 1, got {_short(value)}")
    return value


def clip_norm(path: Path, names: Mapping[str, Any]) -> float | None:
    """The limit on the gradient norm; None for no limit."""
    value = names.get("CLIP_NORM")
    if value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 < value < math.inf:
        raise ProgramError(
            f"{path}: CLIP_NORM must be a number over 0, got {_short(value)}",
            "leave it out to clip nothing",
        )
    return float(value)


def weights(path: Path, names: Mapping[str, Any]) -> Weights | None:
    """What the model begins with, by name; None for what it is built with."""
    value = names.get("WEIGHTS")
    if value is None:
        return None
    if not isinstance(value, str | Path | Mapping):
        raise ProgramError(
            f"{path}: WEIGHTS must be a file, a folder or a state dict, got {kind_of(value)}",
            "a file or folder of safetensors, or what torch.save wrote",
        )
    # As the program itself would open it.
    source = path.absolute().parent / value if isinstance(value, str | Path) else cast(Weights, value)
    try:
        return open_weights(source)
    except WeightsError as error:
        raise ProgramError(f"{path}: {error}") from None


def first_line(path: Path, function: Any) -> int | None:
    """Where a function stands in the user's file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename != str(path.absolute()):
        return None
    return code.co_firstlineno


def kind_of(value: Any) -> str:
    """What it is, for people."""
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _check_call(path: Path, name: str, function: Any, arguments: tuple[str, ...]) -> None:
    call = f"{name}({', '.join(arguments)})"
    if not callable(function):
        raise ProgramError(f"{path}: {name} must be a function, got {_short(function)}", f"define {call}")
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*arguments, **_options(name, function))
    except TypeError as error:
        where = place(path, first_line(path, function))
        raise ProgramError(
            f"{where}: {name}{signature} cannot be called as {call}: {error}",
            f"it is called as {call}"
            + (", in this order" if arguments else "")
            + (", with group=... if it has that keyword" if name in MODEL else ""),
        ) from None


def _can_be_called(name: str, function: Any) -> bool:
    signature = _signature(function) if callable(function) else None
    if signature is None:
        return callable(function)
    try:
        signature.bind(*MODEL[name], **_options(name, function))
    except TypeError:
        return False
    return True


def _options(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    return {"group": None} if name in MODEL and takes_group(function) else {}


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Not every callable tells; calling it will.
        return None


def _hint(missing: list[str], names: Mapping[str, Any]) -> str:
    own = [name for name in names if not name.startswith("_") and name not in NEEDED]
    wanted = [*MODEL, *missing[1:]] if missing[0] in MODEL else missing
    close = [(name, found) for name in wanted for found in get_close_matches(name, own, 1)]
    if close:
        return f"is `{close[0][1]}` meant to be `{close[0][0]}`?"
    calls = [f"{name}({', '.join(arguments)})" for name, arguments in NEEDED.items()]
    return f"a program defines {_listed(['layers()', *calls])}, or build_stage(stage, stages) for layers()"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


_Kind = TypeVar("_Kind")


NamedLayer = tuple[str, torch.nn.Module]


class Program:
    """The functions of a program, with what they return checked, and its options."""

    def __init__(self, path: Path, names: Mapping[str, Any]) -> None:
        self.gives = check_names(path, names)
        """Which of `MODEL` it defines."""
        self.path = path
        self.clip_norm: float | None = clip_norm(path, names)
        self.layer_count: int | None = layer_count(path, names)
        self.weights: Weights | None = weights(path, names)
        self._functions: dict[str, Callable[..., Any]] = {name: names[name] for name in (*NEEDED, self.gives)}
        self._takes_group = takes_group(self._functions[self.gives])

    @property
    def is_layered(self) -> bool:
        """Whether its model can be cut anywhere between two layers; if not, it comes in whole stages."""
        return self.gives != "build_stage"

    def build_stage(self, chunk: int, chunks: int, group: Any = None) -> torch.nn.Module:
        """One chunk of the model; the group reaches only a program that asks for it."""
        module = self._model((chunk, chunks), group)
        return self._checked("build_stage", module, torch.nn.Module, "a torch.nn.Module")

    def layers(self, group: Any = None) -> list[NamedLayer]:
        """All layers of a program that gives them at once."""
        return self._named(self._model((), group))

    def build_layers(self, first: int, last: int, group: Any = None) -> list[NamedLayer]:
        """Layers first .. last - 1 of a program that builds them as they are needed."""
        made = self._named(self._model((first, last), group))
        if len(made) != last - first:
            raise ProgramError(
                f"{self._line('build_layers')}: build_layers({first}, {last}) must return {last - first} "
                f"layers, got {len(made)}",
                "it returns the layers from first to last - 1",
            )
        return made

    def _model(self, arguments: tuple[int, ...], group: Any) -> Any:
        options = {"group": group} if self._takes_group else {}
        with blame(self.path, f"{self.gives}({', '.join(map(str, arguments))})"):
            return self._functions[self.gives](*arguments, **options)

    def _named(self, made: Any) -> list[NamedLayer]:
        rows = list(cast(Iterable[Any], made)) if isinstance(made, list | tuple) else None
        if rows is None:
            raise ProgramError(
                f"{self._line(self.gives)}: {self.gives} must return a list of (name, module), "
                f"got {kind_of(made)}"
            )
        for row in rows:
            pair: Any = row if isinstance(row, list | tuple) and len(cast(list[Any], row)) == 2 else (0, 0)
            if not isinstance(pair[0], str) or not isinstance(pair[1], torch.nn.Module):
                raise ProgramError(
                    f"{self._line(self.gives)}: {self.gives} must return pairs of a name and a "
                    f"torch.nn.Module, got {_short(row)}"
                )
        return [(name, module) for name, module in rows]

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        """Of one micro-batch; what the user's code raises is left as it is, for the caller to place."""
        made = self._functions["loss"](output, target)
        value = self._checked("loss", made, torch.Tensor, "a tensor of one number")
        if value.numel() != 1:
            raise ProgramError(
                f"{self._line('loss')}: loss must return a tensor of one number, "
                f"got one of shape {tuple(value.shape)}",
                "take the mean over the micro-batch",
            )
        return value.reshape(())

    def batches(self, seed: int) -> Iterator[Any]:
        """All micro-batches in their global order, from the first."""
        with blame(self.path, f"batches({seed})"):
            made: Any = self._functions["batches"](seed)
            if isinstance(made, Iterable):
                return iter(cast(Iterable[Any], made))
        raise ProgramError(
            f"{self._line('batches')}: batches must return an iterator over (input, target), "
            f"got {kind_of(made)}"
        )

    def optimizer(self, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """What steps these parameters."""
        with blame(self.path, "optimizer(parameters)"):
            made = self._functions["optimizer"](parameters)
        return self._checked("optimizer", made, torch.optim.Optimizer, "a torch.optim.Optimizer")

    def _checked(self, name: str, value: Any, kind: type[_Kind], words: str) -> _Kind:
        if isinstance(value, kind):
            return value
        raise ProgramError(f"{self._line(name)}: {name} must return {words}, got {kind_of(value)}")

    def _line(self, name: str) -> str:
        return place(self.path, first_line(self.path, self._functions[name]))


def load_program(path: str | Path) -> Program:
    """Run the user's file as a module of its own and check what it defines."""
    shown = Path(path)
    code = _compile(shown)
    module = types.ModuleType(_private_name(shown))
    module.__file__ = str(shown.absolute())
    # As `python FILE` would: the program may import what lies beside it, now or later.
    folder = str(shown.absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Classes look their module up by name.
    sys.modules[module.__name__] = module
    with blame(shown, "loading the program"):
        exec(code, module.__dict__)
    return Program(shown, module.__dict__)


def _compile(path: Path) -> types.CodeType:
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise ProgramError(
            f"{path}: there is no such file", "--program names the Python file to train"
        ) from None
    except OSError as error:
        raise ProgramError(f"{path}: cannot read it: {(error.strerror or str(error)).lower()}") from None
    try:
        return compile(source, str(path.absolute()), "exec")
    except SyntaxError as error:
        raise ProgramError(syntax_sentence(path, error)) from None
    except ValueError as error:
        raise ProgramError(f"{path}: not Python source: {error}") from None


def _private_name(path: Path) -> str:
    """No name that an import would find, and the same for the same file."""
    return f"_recycle_program_{path.stem}_{zlib.crc32(str(path.absolute()).encode(errors='replace')):08x}"
