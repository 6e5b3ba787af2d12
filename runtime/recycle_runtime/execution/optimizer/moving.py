"""State beside the optimizer that advances with a layer's steps: a schedule, averages of weights, counters.

    step made        optimizer, then schedule, then everything else, in the order of the program
    step left out    nothing moves
    step undone      everything is as it was before it

Their state travels with the layer, to joiners, to other cuts and into checkpoints.
"""

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from recycle_runtime.execution.optimizer.hook_state import HookState
from recycle_runtime.execution.optimizer.plain_state import (
    NotPlainError,
    Stateful,
    load_state,
    state_of,
)
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program

State = dict[str, Any]


class Moving:
    """Of one layer; without a schedule or anything else it does nothing."""

    def __init__(
        self,
        module: torch.nn.Module,
        schedule: LRScheduler | None = None,
        movers: Sequence[Any] = (),
        attached: Sequence[LRScheduler] = (),
        hooks: HookState | None = None,
    ) -> None:
        """`attached` are schedulers that something else steps: a hook of the optimizer. `hooks` is what such
        hooks remember."""
        self._module, self._schedule, self._movers = module, schedule, tuple(movers)
        parts: list[tuple[str, Stateful]] = [] if schedule is None else [("schedule", schedule)]
        parts += [(f"moves_with_steps/{number}", mover) for number, mover in enumerate(movers)]
        parts += [(f"attached/{number}", scheduler) for number, scheduler in enumerate(attached)]
        if hooks is not None and not hooks.is_empty:
            parts.append(("hooks", hooks))
        self.parts = dict(parts)
        """Everything whose state counts, by name."""

    @property
    def is_empty(self) -> bool:
        return not self.parts

    def step(self) -> None:
        """The optimizer has made a step."""
        if self._schedule is not None:
            self._schedule.step()
        for mover in self._movers:
            if callable(getattr(mover, "update_parameters", None)):
                mover.update_parameters(self._module)
            else:
                mover.step()

    def state_dict(self) -> State:
        """As plain values; tensors are not copied."""
        return {name: state_of(part) for name, part in self.parts.items()}

    def load_state_dict(self, state: State) -> None:
        """Become that; ValueError if it is the state of other things."""
        if missing := sorted(self.parts.keys() - state.keys()):
            raise ValueError(f"there is no state of {missing[0]} in it")
        for name, part in self.parts.items():
            load_state(part, state[name])


def moving_of(program: Program, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Moving:
    """Objects that advance with the steps of this layer; ProgramError if one could not be undone."""
    schedule = program.schedule(optimizer)
    known = _schedules_in(schedule)
    attached = [each for each in _attached(optimizer) if id(each) not in known]
    movers = program.moves_with_steps(module, optimizer)
    moving = Moving(module, schedule, movers, attached, HookState(optimizer))
    for name, part in moving.parts.items():
        try:
            state_of(part)
        except NotPlainError as error:
            raise ProgramError(
                f"{program.path}: {name.partition('/')[0]}: {type(part).__name__} cannot be handed to "
                f"another worker: {error}",
                "its state_dict() must hold tensors, numbers, strings and containers of these",
            ) from None
    return moving


def _attached(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """Schedulers that the program has made inside `optimizer`, for hooks to step: nothing else names them."""
    if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return []
    found = [each for each in gc.get_objects() if _is_scheduler(each) and each.optimizer is optimizer]
    inner = {id(one) for each in found for one in _inside(each)}
    return [each for each in found if id(each) not in inner]


def _is_scheduler(each: object) -> bool:
    return issubclass(type(each), LRScheduler)


def _schedules_in(schedule: LRScheduler | None) -> set[int]:
    """A scheduler and those that it is made of."""
    return set() if schedule is None else {id(schedule), *map(id, _inside(schedule))}


def _inside(schedule: LRScheduler) -> list[LRScheduler]:
    found: list[LRScheduler] = []
    for value in vars(schedule).values():
        several: list[Any] = list(value) if isinstance(value, list | tuple) else [value]  # pyright: ignore
        for each in several:
            if isinstance(each, LRScheduler):
                found += [each, *_inside(each)]
    return found
