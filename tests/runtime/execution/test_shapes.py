"""Tensors that cross the boundaries of a chunk."""

from threading import Thread

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.execution.shapes import Shapes
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.transport.interface import TensorSpec


def test_the_next_chunk_hears_what_leaves_this_one() -> None:
    store = dist.HashStore()
    here, there = Shapes(store, 0), Shapes(store, 1)
    outputs = [torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64)]
    for _ in range(2):
        here.show("float32[4,2]", outputs)
    expected = (TensorSpec((4, 8), torch.float32), TensorSpec((4,), torch.int64))
    assert here.leaving("float32[4,2]") == there.arriving("float32[4,2]") == expected


@pytest.mark.parametrize(
    "outputs", [[torch.zeros(4, 9)], [torch.zeros(4, 8).double()], [], [torch.zeros(4, 8), torch.zeros(1)]]
)
def test_inputs_of_one_shape_give_outputs_of_one_shape(outputs: list[torch.Tensor]) -> None:
    shapes = Shapes(dist.HashStore(), 2)
    shapes.show("float32[4,2]", [torch.zeros(4, 8)])
    with pytest.raises(ProgramError, match=r"chunk 2 gives on was float32\[4, 8\] and is "):
        shapes.show("float32[4,2]", outputs)
    shapes.show("float32[3,2]", outputs)


def test_a_host_ahead_of_its_device_waits_for_what_gradients_reach() -> None:
    store = dist.HashStore()
    here, there = Shapes(store, 0), Shapes(store, 1)
    found: list[list[int]] = []
    asks = Thread(target=lambda: found.append(here.reached([0, 1], lambda: None)))
    asks.start()
    there.tell_reached([0, 1])
    asks.join()
    assert found == [[0, 1]]


def test_a_tensor_that_gets_its_first_gradient_later() -> None:
    store = dist.HashStore()
    here, there = Shapes(store, 0), Shapes(store, 1)
    there.tell_reached([0])
    waits: list[int] = []
    assert here.reached([0, 1], lambda: waits.append(0)) == [0]
    assert here.reached([0, 1], lambda: there.tell_reached([0, 1])) == [0, 1]
    assert here.reached([0, 1], lambda: waits.append(2)) == [0, 1]
    assert waits == [0]


def test_a_chunk_whose_backwards_reach_nothing() -> None:
    store = dist.HashStore()
    here, there = Shapes(store, 0), Shapes(store, 1)
    there.tell_reached([])
    assert here.reached([0], lambda: None) == []
