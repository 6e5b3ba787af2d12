"""The user's program: a Python file that says what to train.

    layers() -> [(name, nn.Module), ...]        the model; one tensor or a tuple in and out; layers chain
    loss(output, target) -> scalar tensor       the mean over the micro-batch
    microbatch(index) -> (input, target)        the data, by the number of the micro-batch
    optimizer(parameters) -> Optimizer          a torch.optim.Optimizer, of each layer
    optimizer(named_parameters) -> Optimizer    the same, given (name, parameter) pairs

and may define

    parallelize(module, mesh)                   distributes a layer's parameters over tensor-parallel ranks
    schedule(optimizer) -> LRScheduler          any of torch.optim.lr_scheduler, stepped after each step
    on_step(report)                             called on every worker after each step: see `trainer`
    moves_with_steps(module, optimizer)         averages of weights, counters: one object or a list of them
    TIED = [("wte.weight", "head.weight")]      optional: parameters that are one, by name
    CLIP_NORM = 1.0                             clip gradients by the norm of the whole model
    CLIP_VALUE = 0.5                            clip every number in the gradients
    PRECISION = "bf16"                          or "bf16-weights": see `precision`
    COMPILE = True                              compile each layer; or the options of torch.compile
    RANKS = (1, 2)                              numbers of tensor-parallel ranks that it can run with, beside
                                                the job's: a worker that has lost some goes on with fewer
    DRAW_AHEAD = True                           draw data of the next step before `on_step` has run
    WEIGHTS = "gpt2/"                           begin with these, by the names of the whole model

In place of `layers` a program may give

    model() -> nn.Module                        a whole model, which is cut into layers: see `model_layers`;
                                                without `loss`, it computes its own
    build_layers(first, last) -> the same       layers first .. last - 1 of LAYER_COUNT, and no others
    build_stage(stage, stages) -> nn.Module     whole stages, for jobs whose cut never changes

In place of `microbatch` it may give

    data(seed) -> source                        a DataLoader, recycle.Batches, a sequence, a stream
    batches(seed) -> iterator                   micro-batches (input, target), the same for the same seed

A layer that gives a tuple gives the next one as many arguments. All but `model` may have a keyword `group`:
the process group of the worker's tensor-parallel ranks. Of all that a worker reads, this file alone is
executed. Whether it defines what it should is found out before anything is built.
"""

import inspect
import logging
import math
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from recycle_runtime.program.compiled import compile_layer, unwrapped
from recycle_runtime.program.copies import refuse_wrappers
from recycle_runtime.program.errors import ProgramError, blame, place, syntax_sentence
from recycle_runtime.program.named_inputs import as_tuple
from recycle_runtime.program.plan_keys import names_some, unmatched_keys
from recycle_runtime.program.precision import Precision, precision_of
from recycle_runtime.program.source_digest import source_digest
from recycle_runtime.program.ties import Tie, told_ties
from recycle_runtime.program.user_file import absolute, note_start
from recycle_runtime.weights.named import Weights, open_weights
from recycle_runtime.weights.safetensors import WeightsError

MODEL: dict[str, tuple[str, ...]] = {
    "build_layers": ("first", "last"),
    "layers": (),
    "build_stage": ("stage", "stages"),
    "model": (),
}
"""Functions that may give a program's model, with their parameters; the first that it defines counts."""
DATA: dict[str, tuple[str, ...]] = {
    "batches": ("seed",),
    "microbatch": ("index",),
    "data": ("seed",),
}
"""Functions that may give its data, with their parameters; the first that can be called so counts."""
NEEDED = {
    "loss": ("output", "target"),
    "optimizer": ("parameters",),
}
"""The names that a program defines beside the model, and what each is called with."""
OPTIONAL = {
    "parallelize": ("module", "mesh"),
    "schedule": ("optimizer",),
    "moves_with_steps": ("module", "optimizer"),
    "on_step": ("report",),
}
"""The functions that it may define, and what each is called with."""
_LOGGER = logging.getLogger(__name__)
_NAMED = ("named_parameters", "named")
"""Names of the parameter of `optimizer` where the function takes pairs of name and parameter."""


def check_names(path: Path, names: Mapping[str, Any]) -> str:
    """Name of the function that gives the model; raise for the first mistake that prevents its call."""
    given = [name for name in MODEL if name in names]
    missing = [name for name in NEEDED if name not in names]
    if not any(name in names for name in DATA):
        missing.insert(missing.index("optimizer") if "optimizer" in missing else len(missing), "microbatch")
    if missing or not given:
        wanted = missing if given else ["layers", *missing]
        raise ProgramError(f"{path}: it does not define {_listed(wanted)}", _hint(wanted, names))
    for name, arguments in NEEDED.items():
        _check_call(path, name, names[name], arguments)
    for name, arguments in OPTIONAL.items():
        if names.get(name) is not None:
            _check_call(path, name, names[name], arguments)
    check_one_of(path, DATA, names)
    return check_one_of(path, MODEL, names)


def check_one_of(path: Path, table: Mapping[str, tuple[str, ...]], names: Mapping[str, Any]) -> str:
    """Name in this table that the program defines: the first that can be called as it should."""
    given = [name for name in table if name in names]
    # Programs have always been free to call a number or a helper `layers` or `data`.
    for name in given[:-1]:
        if _can_be_called(name, names[name], table[name]):
            return name
    _check_call(path, given[-1], names[given[-1]], table[given[-1]])
    return given[-1]


def takes_group(function: Callable[..., Any]) -> bool:
    """True if the function that gives the model has a parameter `group`."""
    signature = _signature(function)
    return signature is not None and "group" in signature.parameters


def said_layer_count(path: Path, names: Mapping[str, Any]) -> int | None:
    """Of all layers, where the program says so; the only way to know without building them."""
    value = names.get("LAYER_COUNT")
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise ProgramError(f"{path}: LAYER_COUNT must be a whole number from 1, got {_short(value)}")
    return value


def told_ranks(path: Path, names: Mapping[str, Any]) -> tuple[int, ...]:
    """RANKS; none if it is left out."""
    value = names.get("RANKS", ())
    good = isinstance(value, tuple | list) and all(
        isinstance(each, int) and not isinstance(each, bool) and each > 0
        for each in cast(Sequence[Any], value)
    )
    if not good:
        raise ProgramError(
            f"{path}: RANKS must be a tuple of numbers over 0, got {_short(value)}",
            "it names the numbers of tensor-parallel ranks that the program can run with, such as (1, 2)",
        )
    if value and "parallelize" not in names:
        raise ProgramError(
            f"{path}: RANKS needs parallelize(module, mesh)",
            "slices that a program cuts itself cannot be put together for fewer ranks",
        )
    return tuple(sorted(cast(Sequence[int], value)))


def clip_limit(path: Path, names: Mapping[str, Any], name: str) -> float | None:
    """A limit on gradients (CLIP_NORM, CLIP_VALUE); None for no limit."""
    value = names.get(name)
    if value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 < value < math.inf:
        raise ProgramError(
            f"{path}: {name} must be a number over 0, got {_short(value)}",
            "leave it out to clip nothing",
        )
    return float(value)


def _switch(path: Path, names: Mapping[str, Any], name: str) -> bool:
    value = names.get(name, False)
    if not isinstance(value, bool):
        raise ProgramError(f"{path}: {name} must be True or False, got {_short(value)}")
    return value


def _compile_options(path: Path, names: Mapping[str, Any]) -> Mapping[str, Any] | None:
    value = names.get("COMPILE", False)
    if isinstance(value, bool):
        return {} if value else None
    if not isinstance(value, Mapping):
        raise ProgramError(
            f"{path}: COMPILE must be True, False or the options of torch.compile, got {_short(value)}",
            'COMPILE = {"mode": "max-autotune-no-cudagraphs"}, for example',
        )
    return cast(Mapping[str, Any], value)


def _refuse_parameters(path: Path, loss: Any) -> None:
    """Of a loss that is a module: they are in no layer."""
    named = loss.named_parameters() if isinstance(loss, torch.nn.Module) else ()
    names = [name for name, parameter in named if parameter.requires_grad]
    if names:
        raise ProgramError(
            f"{path}: the loss has parameters that require gradients and are in no layer of the model, so "
            f"nothing would train them: {', '.join(names[:8])}{' and more' if names[8:] else ''}",
            "make them a part of the last layer, or freeze them with requires_grad_(False)",
        )


def weights(path: Path, names: Mapping[str, Any]) -> Weights | None:
    """Weights that the model begins with, by name; None for those it is built with."""
    value = names.get("WEIGHTS")
    if value is None:
        return None
    if not isinstance(value, str | Path | Mapping):
        raise ProgramError(
            f"{path}: WEIGHTS must be a file, a folder or a state dict, got {kind_of(value)}",
            "a file or folder of safetensors, or what torch.save wrote",
        )
    # As the program itself would open it.
    source = absolute(path).parent / value if isinstance(value, str | Path) else cast(Weights, value)
    try:
        return open_weights(source)
    except WeightsError as error:
        raise ProgramError(f"{path}: {error}") from None


def wants_names(function: Callable[..., Any]) -> bool:
    """True if `optimizer` takes (name, parameter) pairs, as the name of its parameter says."""
    signature = _signature(function)
    return signature is not None and next(iter(signature.parameters), "") in _NAMED


def first_line(path: Path, function: Any) -> int | None:
    """First line of a function in the user's file; None if it is elsewhere."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename != str(absolute(path)):
        return None
    return code.co_firstlineno


def kind_of(value: Any) -> str:
    """Kind of a value, for people."""
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


def _can_be_called(name: str, function: Any, arguments: tuple[str, ...]) -> bool:
    signature = _signature(function) if callable(function) else None
    if signature is None:
        return callable(function)
    try:
        signature.bind(*arguments, **_options(name, function))
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
    wanted = [*MODEL, *missing[1:]] if missing[0] in MODEL else [*missing]
    if "microbatch" in missing:
        wanted += ["batches"]
    close = [(name, found) for name in wanted for found in get_close_matches(name, own, 1)]
    if close:
        return f"is `{close[0][1]}` meant to be `{close[0][0]}`?"
    calls = [f"{name}({', '.join(arguments)})" for name, arguments in NEEDED.items()]
    return (
        f"a program defines {_listed(['layers()', 'microbatch(index)', *calls])}, or model() for "
        "layers(), or data(seed) or batches(seed) for microbatch(index)"
    )


def _needs_arguments(function: Callable[..., Any]) -> bool:
    """Beside the object itself."""
    signature = _signature(function)
    parameters = [] if signature is None else list(signature.parameters.values())[1:]
    return any(
        each.default is inspect.Parameter.empty
        and each.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for each in parameters
    )


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else f"{text[:40]}..."


def own_loss(output: Any, target: Any) -> Any:
    """Loss that a whole model has computed itself, as Hugging Face models do when they are given `labels`."""
    value = getattr(output, "loss", None)
    if value is None:
        raise ProgramError(
            f"the model gives no loss: its output, {kind_of(output)}, has none",
            "define loss(output, target), or have `labels` among the inputs of a model that takes them",
        )
    return value


_Kind = TypeVar("_Kind")


NamedLayer = tuple[str, torch.nn.Module]


class Program:
    """The functions of a program, with what they return checked, and its options."""

    def __init__(self, path: Path, names: Mapping[str, Any]) -> None:
        if "model" in names and "loss" not in names:
            names = {**names, "loss": own_loss}
        self.gives = check_names(path, names)
        """Name in `MODEL` that the program defines."""
        self.is_layered = self.gives != "build_stage"
        """True if its model can be cut anywhere between two layers; if not, it comes in whole stages."""
        _refuse_parameters(path, names["loss"])
        self.path = path
        self.source_digest = source_digest(path)
        """For checkpoints to know by which program they were made."""
        self.clip_norm: float | None = clip_limit(path, names, "CLIP_NORM")
        self.clip_value: float | None = clip_limit(path, names, "CLIP_VALUE")
        self.precision: Precision = precision_of(path, names.get("PRECISION"))
        self.ranks: tuple[int, ...] = told_ranks(path, names)
        """Numbers of tensor-parallel ranks that a worker may go on with when it has lost some."""
        self.layer_count: int | None = said_layer_count(path, names)
        self.ties: tuple[Tie, ...] = told_ties(path, names)
        """Parameters that are one: those that it names, and those that its layers are found to share."""
        self.says_ties = names.get("TIED") is not None
        """True if the program defines TIED."""
        self.weights: Weights | None = weights(path, names)
        self.gives_data = check_one_of(path, DATA, names)
        """Name in `DATA` that the program defines."""
        self.data_comes_later = False
        """True if nothing is known of its data before the first step: a script gives it then."""
        self.script_arguments: tuple[str, ...] | None = None
        """Of the script that has made it, if one has."""
        self.compiles: Mapping[str, Any] | None = _compile_options(path, names)
        """With which options of torch.compile layers are compiled, if they are."""
        self.draws_ahead = _switch(path, names, "DRAW_AHEAD")
        """True if data of the next step may be drawn before the user's code has run between two steps."""
        self._functions: dict[str, Callable[..., Any]] = {
            name: names[name] for name in (*NEEDED, self.gives, self.gives_data)
        }
        self._functions |= {name: names[name] for name in OPTIONAL if names.get(name) is not None}
        self._takes_group = takes_group(self._functions[self.gives])
        self.said_layers: Any = names.get("LAYERS") if self.gives == "model" else None
        """Modules that make up the layers of a whole model, if the program lists them."""
        self.made: dict[Any, Any] = {}
        """Objects that are made of the program once in a process."""
        self.part_names: frozenset[str] | None = None
        """Names that modules of all layers have, as `parallelize` sees them; None if only some are known."""

    def tell_unknown_source(self) -> None:
        """A warning if nothing can be compared when training is resumed."""
        if not self.source_digest:
            _LOGGER.warning(
                "%s: its source cannot be read any more, so that checkpoints do not say which it was, and "
                "resuming does not find what has changed in it",
                self.path,
            )

    @property
    def has_body(self) -> bool:
        """True if the user's code runs between two steps: the body of a script's loop, or `on_step`."""
        return self.data_comes_later or self.on_step is not None

    def build_stage(self, chunk: int, chunks: int, group: Any = None) -> torch.nn.Module:
        """One chunk of the model; the group reaches only a program that asks for it."""
        module = self._model((chunk, chunks), group)
        stage = unwrapped(self._checked("build_stage", module, torch.nn.Module, "a torch.nn.Module"))
        for part in stage.children() if isinstance(stage, torch.nn.Sequential) else (stage,):
            self.compiled(part)
        return stage

    def compiled(self, module: torch.nn.Module) -> torch.nn.Module:
        """A layer, compiled if the program wants that."""
        if self.compiles is not None:
            compile_layer(module, self.compiles)
        return module

    def arguments(self, inputs: Any) -> tuple[torch.Tensor, ...]:
        """Arguments of the first layer for the input of a micro-batch."""
        if isinstance(inputs, Mapping) and self.gives != "model":
            raise ProgramError(
                f"{self.path}: the input of a micro-batch is a dictionary, and layers are called with "
                "tensors in their order",
                "give a tuple, or the whole model as model(), which is called with names",
            )
        return as_tuple(inputs)

    def model(self) -> torch.nn.Module | None:
        """The whole model of a program that leaves it to us to cut it; None if it gives layers after all."""
        made = self._model((), None)
        if isinstance(made, list | tuple):
            self.gives = "layers"
            self._functions["layers"] = self._functions["model"]
            return None
        return self._checked("model", made, torch.nn.Module, "a torch.nn.Module")

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
        return [(name, self.compiled(unwrapped(module))) for name, module in rows]

    def parallelize(self, module: torch.nn.Module, mesh: Callable[[], Any]) -> torch.nn.Module:
        """Have the program distribute a layer over the ranks of its worker, which `mesh` gives."""
        if "parallelize" not in self._functions:
            return module
        with blame(self.path, "parallelize(module, mesh)"), unmatched_keys(module) as keys:
            self._functions["parallelize"](module, mesh())
        refuse_wrappers(self.path, module)
        wrong = (
            [] if self.part_names is None else [key for key in keys if not names_some(key, self.part_names)]
        )
        if wrong:
            raise ProgramError(
                f"{self._line('parallelize')}: the plan of parallelize names {', '.join(sorted(wrong))}, and "
                "no layer has a module of that name",
                "modules of a whole model have its names, those of layers() the names inside their layer",
            )
        return module

    @property
    def has_parallelize(self) -> bool:
        """True if layers may be distributed over the ranks of a worker."""
        return "parallelize" in self._functions

    @property
    def loss_function(self) -> Callable[..., Any]:
        """As the program gives it."""
        return self._functions["loss"]

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
        return value.reshape(()) if value.dim() else value

    def refuse_constant_loss(self) -> NoReturn:
        """One that was computed for a step, and that backward cannot begin with."""
        raise ProgramError(
            f"{self._line('loss')}: the loss does not depend on any parameter",
            "is it detached, or are gradients switched off?",
        )

    def microbatch(self, index: int) -> Any:
        """One micro-batch; what the user's code raises is left as it is, for the caller to place."""
        return self._functions["microbatch"](index)

    def data(self, seed: int) -> Any:
        """Data source of the program."""
        with blame(self.path, f"data({seed})"):
            return self._functions["data"](seed)

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

    def optimizer(
        self, parameters: Sequence[torch.nn.Parameter], names: Sequence[str] = ()
    ) -> torch.optim.Optimizer:
        """Optimizer of these parameters, which have these names in the whole model."""
        function = self._functions["optimizer"]
        named = wants_names(function)
        given: Any = list(zip(names, parameters, strict=True)) if named else parameters
        with blame(self.path, f"optimizer({'named_parameters' if named else 'parameters'})"):
            made = function(given)
        return self._checked("optimizer", made, torch.optim.Optimizer, "a torch.optim.Optimizer")

    @property
    def optimizer_wants_names(self) -> bool:
        """True if `optimizer` is given names of parameters."""
        return wants_names(self._functions["optimizer"])

    def schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """Schedule of this optimizer's rates, step by step; None where the program has no schedule."""
        if "schedule" not in self._functions:
            return None
        with blame(self.path, "schedule(optimizer)"):
            made = self._functions["schedule"](optimizer)
        scheduler = self._checked("schedule", made, LRScheduler, "a scheduler of torch.optim.lr_scheduler")
        if isinstance(scheduler, ReduceLROnPlateau) or _needs_arguments(type(scheduler).step):
            raise ProgramError(
                f"{self._line('schedule')}: {type(scheduler).__name__} needs a number in every step(), "
                "and a schedule is stepped without one",
                "layers are stepped before the loss of the step is known to all; use a schedule of the step "
                "alone, such as OneCycleLR or LambdaLR",
            )
        return scheduler

    @property
    def on_step(self) -> Callable[[Any], Any] | None:
        """Function that the program wants called with each step; exceptions of it are left as they are."""
        return self._functions.get("on_step")

    @property
    def has_movers(self) -> bool:
        """True if anything of the program moves with steps beside optimizer and schedule."""
        return "moves_with_steps" in self._functions

    def moves_with_steps(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
        """Further objects that advance with the steps of a layer."""
        if "moves_with_steps" not in self._functions:
            return []
        with blame(self.path, "moves_with_steps(module, optimizer)"):
            made = self._functions["moves_with_steps"](module, optimizer)
        movers = list(cast(Iterable[Any], made)) if isinstance(made, list | tuple) else [made]
        for mover in (each for each in movers if each is not None):
            steps = ("update_parameters", "step")
            lacks = [name for name in ("state_dict", "load_state_dict") if not hasattr(mover, name)]
            if not any(callable(getattr(mover, name, None)) for name in steps):
                lacks.append("step")
            if lacks:
                raise ProgramError(
                    f"{self._line('moves_with_steps')}: what moves_with_steps returns must have "
                    f"{_listed(lacks)}, got {kind_of(mover)}",
                    "give it step() or update_parameters(module), state_dict() and load_state_dict(state)",
                )
        return [each for each in movers if each is not None]

    def _checked(self, name: str, value: Any, kind: type[_Kind], words: str) -> _Kind:
        if isinstance(value, kind):
            return value
        raise ProgramError(f"{self._line(name)}: {name} must return {words}, got {kind_of(value)}")

    def _line(self, name: str) -> str:
        return place(self.path, first_line(self.path, self._functions[name]))


def load_program(path: str | Path) -> Program:
    """Run the user's file as a module of its own and check what it defines."""
    shown = Path(path)
    note_start(shown)
    code = _compile(shown)
    module = types.ModuleType(_private_name(shown))
    module.__file__ = str(absolute(shown))
    # As `python FILE` would: the program may import what lies beside it, now or later.
    folder = str(absolute(shown).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # Classes look their module up by name.
    sys.modules[module.__name__] = module
    with blame(shown, "loading the program"):
        exec(code, module.__dict__)
    program = Program(shown, module.__dict__)
    program.tell_unknown_source()
    return program


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
        return compile(source, str(absolute(path)), "exec")
    except SyntaxError as error:
        raise ProgramError(syntax_sentence(path, error)) from None
    except ValueError as error:
        raise ProgramError(f"{path}: not Python source: {error}") from None


def _private_name(path: Path) -> str:
    """No name that an import would find, and the same for the same file."""
    return f"_recycle_program_{path.stem}_{zlib.crc32(str(absolute(path)).encode(errors='replace')):08x}"
