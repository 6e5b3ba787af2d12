"""Values that scripts keep travel as plain values, and nothing else does."""

from typing import Any

import pytest
import torch

import recycle_runtime as recycle
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.trainer.kept import Kept


class Counter:
    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def keeping(**things: Any) -> Kept:
    kept = Kept()
    for name, thing in things.items():
        kept.add(name, thing)
    return kept


def test_there_and_back() -> None:
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=0.5)
    data = keeping(counter=Counter([1, "two", 3.0]), optimizer=optimizer).pack()
    counter, other = Counter(), torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=0.1)
    keeping(counter=counter, optimizer=other).load(data)
    assert counter.value == [1, "two", 3.0] and other.param_groups[0]["lr"] == 0.5


def test_nothing_kept_is_nothing() -> None:
    assert Kept().pack() == b"" and not Kept()
    keeping(counter=Counter()).load(b"")


def test_what_cannot_be_kept() -> None:
    with pytest.raises(ProgramError, match="a value of type list has no state_dict"):
        keeping(numbers=[1, 2])
    with pytest.raises(ProgramError, match="tensors, numbers, strings"):
        keeping(counter=Counter(Counter())).pack()
    kept = keeping(counter=Counter())
    with pytest.raises(ProgramError, match="already"):
        kept.add("counter", Counter())
    with pytest.raises(ProgramError, match=r"keeps \['other'\], and the state that it goes on with holds"):
        keeping(other=Counter()).load(kept.pack())


def test_a_trainer_outside_of_recycle_run_says_how_to_start() -> None:
    with pytest.raises(SystemExit, match="recycle-run local PLAN"):
        recycle.Trainer([], loss=torch.nn.functional.mse_loss, optimizer=torch.optim.Adam)
