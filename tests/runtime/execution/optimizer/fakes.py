"""Groups without a network: threads that add up tensors."""

import threading
from collections.abc import Callable
from typing import cast

import torch


def numbers(tensor: torch.Tensor) -> list[float]:
    """Of any tensor, in a row."""
    values = tensor.detach().double().flatten()
    return cast("list[float]", values.tolist())  # pyright: ignore[reportUnknownMemberType]


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # pyright: ignore[reportUnknownMemberType]


class Summation:
    """One sum under way; the result lands in a member's tensor when that member waits."""

    def __init__(self, size: int) -> None:
        self._size, self._parts = size, dict[int, torch.Tensor]()
        self._is_complete = threading.Event()

    def join(self, member: int, tensor: torch.Tensor) -> None:
        self._parts[member] = tensor.clone()
        if len(self._parts) == self._size:
            self._is_complete.set()

    def total(self) -> torch.Tensor:
        assert self._is_complete.wait(300), "a member never came"
        total = self._parts[0].clone()
        for member in range(1, self._size):
            total += self._parts[member]
        return total


class Arriving:
    """A member's part of a sum."""

    def __init__(self, summation: Summation, tensor: torch.Tensor) -> None:
        self._summation, self._tensor = summation, tensor

    def wait(self) -> None:
        self._tensor.copy_(self._summation.total())


class Group:
    """Members that sum tensors together, each in its own time, in the same order."""

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, threading.Lock()
        self._sums: list[Summation] = []
        self._joined = [0] * size

    def starter(self, member: int) -> Callable[[torch.Tensor], Arriving]:
        def start(tensor: torch.Tensor) -> Arriving:
            with self._lock:
                number = self._joined[member]
                self._joined[member] += 1
                if number == len(self._sums):
                    self._sums.append(Summation(self._size))
                summation = self._sums[number]
                summation.join(member, tensor)
            return Arriving(summation, tensor)

        return start


def alone(_: torch.Tensor) -> None:
    """The sum over a group of one."""
