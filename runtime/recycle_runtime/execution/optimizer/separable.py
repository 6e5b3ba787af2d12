"""Division of an optimizer's work as finely as it can be, found out by steps on a few small numbers.

    rows          every number is stepped by itself, as Adam does: any rows of a parameter can be apart
    parameters    a parameter is stepped as a whole, as Muon and Adafactor do
    together      what becomes of one parameter depends on others

Small copies of a layer's parameters make a few steps: all of them, some with other gradients or without the
others, and by rows; what becomes of them is compared. One that works on all parameters together would train
something else here than in a plain loop, since every layer has an optimizer of its own.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import Enum

import torch

from recycle_runtime.execution.optimizer.shards import Rows, rows_in

_LONGEST = 4
"""Numbers along each dimension of a small copy, and some more: no two dimensions are of one length."""
_LONGEST_OF_LARGEST = 160
"""The same for the largest parameter with so many dimensions: some optimizers treat small ones otherwise."""
_STEPS = 3
_OTHERWISE = 3.0
"""Factor of other gradients, to see whether that matters."""
_TOLERANCE = 1e-9
"""Relative. Steps are made in float64."""

MakeOptimizer = Callable[[Sequence[torch.nn.Parameter], Sequence[str]], torch.optim.Optimizer]


class Division(Enum):
    """The finest that leaves a step as it is."""

    ROWS = "rows"
    PARAMETERS = "parameters"
    TOGETHER = "together"
    UNKNOWN = "unknown"
    """It draws random numbers, or cannot step small tensors: it is left in one piece."""


def division_of(
    make: MakeOptimizer, parameters: Sequence[torch.nn.Parameter], names: Sequence[str]
) -> Division:
    """Of what steps parameters with these shapes and names."""
    before = torch.get_rng_state()
    try:
        # One parameter has another one beside it in a plain loop.
        alone = len(parameters) == 1
        trial = _Trial(make, [*parameters] * (1 + alone), [*names] * (1 + alone))
        everything = [Rows(0, rows_in(value)) for value in trial.values]
        whole = trial.stepped(everything)
        is_repeated = _are_close(whole, trial.stepped(everything))
        if not is_repeated or not torch.equal(before, torch.get_rng_state()):
            return Division.UNKNOWN
        if not all(
            trial.is_as_before(whole, everything, others, _OTHERWISE) for others in _sides(len(whole))
        ):
            return Division.TOGETHER
        if not all(trial.is_as_before(whole, everything, others, None) for others in _sides(len(whole))):
            # Such as one that draws from a generator of its own, for one parameter after the other.
            return Division.UNKNOWN
        first = trial.stepped([Rows(0, 1)] * len(everything))
        others = trial.stepped([Rows(1, max(1, rows.last)) for rows in everything])
        by_rows = [
            torch.cat([one, other]) if one.dim() else one for one, other in zip(first, others, strict=True)
        ]
        is_by_rows = trial.keeps_rows and _are_close(whole, by_rows)
        return Division.ROWS if is_by_rows else Division.PARAMETERS
    except Exception:
        # It is the program's: whatever it cannot do with small tensors, it may do with its own.
        return Division.UNKNOWN
    finally:
        torch.set_rng_state(before)


class _Trial:
    """Small copies of a layer's parameters, and gradients for them."""

    def __init__(
        self, make: MakeOptimizer, parameters: Sequence[torch.nn.Parameter], names: Sequence[str]
    ) -> None:
        self._make, self._like, self._names = make, parameters, names
        random = torch.Generator().manual_seed(0)
        largest = {each.dim(): each for each in sorted(parameters, key=torch.Tensor.numel)}
        shapes = [
            _short(each.shape, _LONGEST_OF_LARGEST if largest[each.dim()] is each else _LONGEST)
            for each in parameters
        ]
        self.keeps_rows = True
        """True if all that was kept so far is a number, or has the shape of what is stepped."""
        self.values = [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]
        self._gradients = [
            torch.randn([_STEPS, *shape], generator=random, dtype=torch.float64) * (number + 1)
            for number, shape in enumerate(shapes)
        ]

    def is_as_before(
        self,
        whole: Sequence[torch.Tensor],
        everything: Sequence[Rows],
        others: Collection[int],
        factor: float | None,
    ) -> bool:
        """True if the rest becomes what it did if some have other gradients, or are not there."""
        chosen = [number in others for number in range(len(whole))]
        if factor is None:
            rows = [
                Rows(0, 0) if is_other else each for each, is_other in zip(everything, chosen, strict=True)
            ]
            found = self.stepped(rows)
        else:
            found = self.stepped(everything, [factor if is_other else 1.0 for is_other in chosen])
        rest = [number for number, is_other in enumerate(chosen) if not is_other]
        return _are_close([whole[number] for number in rest], [found[number] for number in rest])

    def stepped(self, rows: Sequence[Rows], factors: Sequence[float] | None = None) -> list[torch.Tensor]:
        """These rows of each after some steps in one optimizer; one without rows has no gradient. Gradients
        are multiplied by the factors."""
        made = [
            torch.nn.Parameter(each.of(value).clone()) for each, value in zip(rows, self.values, strict=True)
        ]
        for parameter, like in zip(made, self._like, strict=True):
            vars(parameter).update(vars(like))
        optimizer = self._make(made, self._names)
        for step in range(_STEPS):
            for number, (parameter, each) in enumerate(zip(made, rows, strict=True)):
                gradient = self._gradients[number][step] * (1.0 if factors is None else factors[number])
                parameter.grad = each.of(gradient).clone() if parameter.numel() else None
            optimizer.step()
        self.keeps_rows &= all(
            value.dim() == 0 or value.shape == parameter.shape
            for parameter, state in optimizer.state.items()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        )
        return [parameter.detach() for parameter in made]


def _sides(count: int) -> Iterator[set[int]]:
    """Some of so many: of any two, one is chosen without the other at some time, and the other way round."""
    for bit in range((count - 1).bit_length()):
        chosen = {number for number in range(count) if number >> bit & 1}
        yield chosen
        yield set(range(count)) - chosen


def _short(shape: torch.Size, longest: int) -> list[int]:
    """At most about so long along each dimension, and a square is none: what is kept for rows and columns has
    another shape."""
    found: list[int] = []
    for axis, length in enumerate(shape):
        short = min(longest + axis, length)
        found.append(short - 1 if short in found and short > 1 else short)
    return found


def _are_close(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(
        torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        for one, other in zip(some, others, strict=True)
    )
