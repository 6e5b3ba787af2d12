"""Cuts a model into consecutive stages whose largest is as small as it can be.

    def build_stage(stage, stages):
        torch.manual_seed(0)
        return cut(nn.Sequential(...), stages)[stage]

Every worker cuts for itself, so costs must be the same everywhere: numbers written down, or the default,
which counts parameters. `measure_layers` finds numbers to write down. Layers keep the names that they had in
the whole model, so parameters are called the same however the model is cut.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, cast

import torch
from torch import nn


class Stage(nn.Module):
    """Some consecutive layers: the stage's inputs go into the first, its output comes from the last."""

    def __init__(self, layers: Iterable[tuple[str, nn.Module]], *, spread: bool, first: int = 0) -> None:
        """`first` is the number of its first layer in the whole model."""
        super().__init__()
        self._spread, self._first = spread, first
        self._order: list[str] = []
        self.before_layer: Callable[[int], None] | None = None
        """Called with the number of every layer before it runs."""
        self.on_value: Callable[[int, Any], None] | None = None
        """Called with what goes into a layer, too; not of a whole model that was cut."""
        given = list(layers)
        self._joined: Any = None
        if given and getattr(given[0][1], "has_whole_names", False):
            self._join([cast(Any, layer) for _, layer in given])
            return
        for name, layer in given:
            inner, last = folder(self, name)
            inner.add_module(last, layer)
            self._order.append(name)

    def _join(self, layers: list[Any]) -> None:
        """Layers of a whole model, which run its own forward around them."""
        for layer in layers:
            layer.put_into(self)
        self._joined = layers[0].join(layers)

    def forward(self, first: Any, *more: Any) -> Any:
        """A layer that gives a tuple gives the next one several arguments, or one if nothing is spread."""
        if self._joined is not None:
            return self._joined.run((first, *more), self.training, self.before_layer)
        value: Any = (first, *more) if more else first
        for number, name in enumerate(self._order, self._first):
            if self.before_layer is not None:
                self.before_layer(number)
            if self.on_value is not None:
                self.on_value(number, value)
            layer = self.get_submodule(name)
            value = layer(*cast(Any, value)) if self._spread and isinstance(value, tuple) else layer(value)
        return value


def folder(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds what is called so, made where there is none, and the last word of the name."""
    *folders, last = name.split(".")
    for word in folders:
        if word not in dict(root.named_children()):
            root.add_module(word, nn.Module())
        root = root.get_submodule(word)
    return root, last


def cut(model: nn.Sequential, stages: int, weights: Sequence[float] | None = None) -> list[nn.Module]:
    """The stages of an nn.Sequential; `weights` gives the cost of each of its layers."""
    # A layer may stand in several places; `named_children` would name it once.
    places = cast(Iterable[tuple[str, nn.Module]], model.named_modules(remove_duplicate=False))
    layers = [(name, layer) for name, layer in places if name and "." not in name]
    if weights is None:
        weights = [parameter_count(layer) for _, layer in layers]
    if len(weights) != len(layers):
        raise ValueError(
            f"there are {len(layers)} layers, so there must be as many costs, got {len(weights)}"
        )
    parts = balance(weights, stages)
    made: list[nn.Module] = [Stage((layers[number] for number in part), spread=False) for part in parts]
    _refuse_shared(made)
    return made


def balance(costs: Sequence[float], stages: int) -> list[range]:
    """Range of layers of each stage: the largest stage is smallest, then the stages are most alike."""
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{len(costs)} layers cannot be cut into {stages} stages of at least one layer each")
    if not all(0 <= cost < float("inf") for cost in costs):
        raise ValueError(f"costs must be numbers from 0, got {list(costs)}")
    sums = list(accumulate(costs, initial=0.0))
    largest, _ = _best_cut(sums, stages, float("inf"), alike=False)
    _, borders = _best_cut(sums, stages, largest, alike=True)
    return [range(begin, end) for begin, end in pairwise(borders)]


def measure_layers(layers: Iterable[nn.Module], example: torch.Tensor, repeat: int = 10) -> list[float]:
    """Seconds of forward and backward of each layer in a chain, medians: numbers to write down as weights."""
    costs: list[float] = []
    for layer in layers:
        given = example.detach()
        if given.is_floating_point():
            given.requires_grad_()
        costs.append(median(_seconds(layer, given) for _ in range(repeat + 1)))
        with torch.no_grad():
            example = layer(given)
    return costs


def _best_cut(sums: Sequence[float], stages: int, most: float, *, alike: bool) -> tuple[float, list[int]]:
    """Dynamic program over stages and where each ends: least largest stage, or least sum of squares."""
    layers = len(sums) - 1
    best: list[tuple[float, list[int]] | None] = [(0.0, [0]), *[None] * layers]
    for stage in range(1, stages + 1):
        after: list[tuple[float, list[int]] | None] = [None] * (layers + 1)
        for end in range(stage, layers - (stages - stage) + 1):
            choices = (
                (value + size**2 if alike else max(value, size), [*borders, end])
                for begin in range(stage - 1, end)
                if (known := best[begin]) is not None
                for value, borders in [known]
                if (size := sums[end] - sums[begin]) <= most
            )
            after[end] = min(choices, default=None)
        best = after
    found = best[layers]
    assert found is not None
    return found


def _refuse_shared(stages: Iterable[nn.Module]) -> None:
    owner: dict[nn.Parameter, int] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            if owner.setdefault(parameter, number) != number:
                raise ValueError(
                    f"parameter {name} is shared by stages {owner[parameter]} and {number}, "
                    "which would train two copies of it: give each its own, or cut elsewhere"
                )


def parameter_count(layer: nn.Module) -> int:
    """And one for the layer itself, so that layers without parameters are shared out too."""
    return 1 + sum(parameter.numel() for parameter in layer.parameters())


def _seconds(layer: nn.Module, given: torch.Tensor) -> float:
    began = time.perf_counter()
    output: torch.Tensor = layer(given)
    if output.requires_grad:
        torch.autograd.backward(output, torch.ones_like(output))
    if output.is_cuda:
        torch.cuda.synchronize(output.device)
    return time.perf_counter() - began
