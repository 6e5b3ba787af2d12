"""Undo of a step: every bit as it was, for every optimizer, at no more memory than it takes."""

import operator
from collections import defaultdict, deque
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_runtime.execution.optimizer import Undo, UndoError
from tests.runtime.execution.optimizer.optimizers import OPTIMIZERS, Odd, values_of

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def weights(count: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (4,), ()][:count]
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes
    ]


def give_gradients(parameters: list[torch.Tensor], seed: int, without: frozenset[int] = frozenset()) -> None:
    generator = torch.Generator().manual_seed(seed)
    for index, parameter in enumerate(parameters):
        gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = None if index in without else gradient


@every_optimizer
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_undo_restores_every_bit(name: str, steps: int) -> None:
    parameters = weights()
    optimizer = OPTIMIZERS[name](parameters)
    undo = Undo(optimizer)
    for seed in range(steps):
        give_gradients(parameters, seed)
        undo.save()
        optimizer.step()
    before = values_of(optimizer)
    give_gradients(parameters, 99)
    undo.save()
    optimizer.step()
    after = values_of(optimizer)
    undo.undo()
    assert values_of(optimizer) == before != after
    give_gradients(parameters, 99)
    optimizer.step()
    assert values_of(optimizer) == after


Event = tuple[str, int]
events = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 7)),
        st.tuples(st.just("undo"), st.just(0)),
        st.tuples(st.just("rate"), st.integers(1, 5)),
    ),
    max_size=12,
)


@given(st.sampled_from(sorted(OPTIMIZERS)), events)
@settings(max_examples=150)
def test_any_order_of_events(name: str, happened: list[Event]) -> None:
    """`step` names the parameters that have no gradient, `rate` is a scheduler."""
    parameters = weights()
    optimizer = OPTIMIZERS[name](parameters)
    undo = Undo(optimizer)
    before: Any = None
    for number, (event, detail) in enumerate(happened):
        if event == "step":
            without = frozenset(index for index in range(3) if detail >> index & 1)
            give_gradients(parameters, number, without)
            before = values_of(optimizer)
            undo.save()
            optimizer.step()
        elif event == "rate":
            set_rate(optimizer, detail / 100)
        elif before is None:
            with pytest.raises(UndoError):
                undo.undo()
        else:
            undo.undo()
            assert values_of(optimizer) == before
            before = None


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def test_undo_twice_is_an_error() -> None:
    parameters = weights()
    optimizer = OPTIMIZERS["adamw"](parameters)
    undo = Undo(optimizer)
    with pytest.raises(UndoError, match="cannot undo: no step has been made yet"):
        undo.undo()
    give_gradients(parameters, 0)
    undo.save()
    optimizer.step()
    undo.undo()
    with pytest.raises(UndoError, match="undone already, and only that one is kept"):
        undo.undo()


def test_undo_after_a_new_group_is_refused() -> None:
    parameters = weights()
    optimizer = torch.optim.AdamW(parameters[:2])
    undo = Undo(optimizer)
    undo.save()
    optimizer.add_param_group({"params": parameters[2:]})
    with pytest.raises(UndoError, match="groups have changed"):
        undo.undo()


def test_tensors_stay_where_they_are() -> None:
    parameters = weights()
    optimizer = OPTIMIZERS["adam-tensor-lr"](parameters)
    undo = Undo(optimizer)
    for seed in range(2):
        give_gradients(parameters, seed)
        undo.save()
        optimizer.step()
    rate, moment = optimizer.param_groups[0]["lr"], optimizer.state[parameters[0]]["exp_avg"]
    entries = optimizer.state[parameters[0]]
    undo.undo()
    assert optimizer.param_groups[0]["lr"] is rate
    assert optimizer.state[parameters[0]] is entries and entries["exp_avg"] is moment


def test_what_a_step_does_not_change_is_not_copied() -> None:
    parameters = weights()
    parameters[0].requires_grad_(False)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    undo = Undo(optimizer)
    give_gradients(parameters, 0, frozenset({0, 1}))
    undo.save()
    assert undo.bytes_held == 8


def test_memory_is_that_of_parameters_and_state_and_does_not_grow() -> None:
    parameters = weights()
    optimizer = OPTIMIZERS["adamw"](parameters)
    undo = Undo(optimizer)
    held: list[int] = []
    for seed in range(6):
        give_gradients(parameters, seed)
        undo.save()
        optimizer.step()
        held.append(undo.bytes_held)
    elements = sum(parameter.numel() for parameter in parameters)
    assert held[0] == 8 * elements
    assert held[1:] == [3 * 8 * elements + 4 * len(parameters)] * 5


def test_state_that_was_gradients_does_not_lead_to_them() -> None:
    """An optimizer may keep the gradient itself; undo must not write into it."""
    parameters = weights(1)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    undo = Undo(optimizer)
    optimizer.state[parameters[0]]["last"] = torch.zeros(3, 2, dtype=torch.float64)
    give_gradients(parameters, 0)
    undo.save()
    optimizer.state[parameters[0]]["last"] = parameters[0].grad
    undo.undo()
    assert optimizer.state[parameters[0]]["last"].abs().max() == 0
    assert parameters[0].grad is not None and parameters[0].grad.abs().min() > 0


def test_what_is_given_back_is_not_the_copy_itself() -> None:
    parameters = weights(1)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    undo = Undo(optimizer)
    state = optimizer.state[parameters[0]]
    give_gradients(parameters, 0)
    state.update(tensor=torch.zeros(1), names=deque(["a"]))
    undo.save()
    state.update(tensor=torch.ones(1))
    undo.undo()
    for _ in range(2):
        undo.save()
        state["tensor"].add_(5)
        state["names"].append("b")
        undo.undo()
        assert state["tensor"].item() == 0 and list(state["names"]) == ["a"]


def test_tensors_that_were_replaced_between_steps_stay_where_they_are() -> None:
    parameters = weights(1)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    undo = Undo(optimizer)
    give_gradients(parameters, 0)
    state = optimizer.state[parameters[0]]
    for value in range(2):
        state["tensor"] = torch.full((1,), float(value))
        undo.save()
    loaded = state["tensor"]
    loaded.add_(5)
    undo.undo()
    assert state["tensor"] is loaded and loaded.item() == 1


def test_without_copies_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_foreach_copy_")
    test_undo_restores_every_bit("odd", 2)


def test_things_that_cannot_be_copied_are_left_alone() -> None:
    parameters = weights(1)
    optimizer = Odd(parameters)
    lines = (line for line in ("one", "two"))
    optimizer.state[parameters[0]]["lines"] = lines
    give_gradients(parameters, 0)
    undo = Undo(optimizer)
    undo.save()
    optimizer.step()
    undo.undo()
    assert list(optimizer.state[parameters[0]]) == ["lines"]
    assert next(optimizer.state[parameters[0]]["lines"]) == "one"


class InContainers(torch.optim.Optimizer):
    """Keeps momenta in containers of its own, beside torch's state, and refers to parameters in others."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.order = list(parameters)
        self.momenta: dict[torch.Tensor, torch.Tensor] = defaultdict(lambda: torch.zeros(()))
        self.lists: list[Any] = [{"sums": [torch.zeros(()), 0]}, (1, torch.zeros(()))]
        self.recent: deque[float] = deque(maxlen=2)
        self.seen: set[int] = set()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for parameter in self.order:
            assert parameter.grad is not None
            size = parameter.grad.abs().sum()
            self.momenta[parameter] = self.momenta[parameter] * 0.9 + parameter.grad
            self.lists[0]["sums"][0] += size
            self.lists[0]["sums"][1] += 1
            self.lists[1][1].add_(size)
            self.recent.append(float(size))
            self.seen.add(len(self.recent) + len(self.seen))
            parameter.sub_(self.momenta[parameter] * 0.1 / (1 + self.lists[1][1] + sum(self.recent)))

    def values(self) -> str:
        with torch.no_grad():
            held = [
                [parameter.tolist() for parameter in self.order],
                [m.tolist() for m in self.momenta.values()],
            ]
            return repr([held, self.lists, self.recent, self.seen])


def test_what_it_keeps_in_containers_of_its_own() -> None:
    parameters = weights()
    optimizer = InContainers(parameters)
    undo, containers = (
        Undo(optimizer),
        (optimizer.order, optimizer.momenta, optimizer.lists, optimizer.recent),
    )
    for seed in range(3):
        before = optimizer.values()
        give_gradients(parameters, seed)
        undo.save()
        optimizer.step()
        after = optimizer.values()
        undo.undo()
        assert optimizer.values() == before != after
        now = (optimizer.order, optimizer.momenta, optimizer.lists, optimizer.recent)
        assert all(map(operator.is_, now, containers)), "others may refer to them"
        assert all(map(operator.is_, optimizer.order, parameters))
        give_gradients(parameters, seed)
        undo.save()
        optimizer.step()
        assert optimizer.values() == after
    held = sum(each.numel() * each.element_size() for each in (*parameters, *optimizer.momenta.values()))
    assert undo.bytes_held < held + 64, "parameters are kept once"
