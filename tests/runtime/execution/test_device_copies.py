"""Data on its way to a device, and numbers on their way back."""

import pytest
import torch

from recycle_runtime.execution.device_copies import Readback, to_device

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU = torch.device("cpu")


class Later:
    """Something under way that changes a tensor when it is waited for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> None:
        self._tensor.add_(1)


def test_on_the_host_nothing_is_copied() -> None:
    tensor = torch.arange(3)
    assert to_device([tensor], CPU)[0] is tensor


def test_numbers_are_those_of_the_moment() -> None:
    numbers, back = torch.tensor([1.0, 2.0]), Readback()
    back.take(numbers)
    numbers.zero_()
    assert back.read() == [1.0, 2.0]
    back.take(numbers, Later(numbers))
    assert back.read() == [1.0, 1.0]


def test_one_number() -> None:
    back = Readback()
    back.take(torch.tensor(0.5, dtype=torch.float64))
    assert back.read() == [0.5]


@needs_gpu
def test_a_gpu_goes_on_while_numbers_come_back() -> None:
    device = torch.device("cuda")
    (copy,) = to_device([torch.arange(1000.0)], device)
    assert copy.is_cuda
    total, back = copy.sum(), Readback()
    back.take(total)
    total.zero_()
    large = torch.randn(4096, 4096, device=device)
    for _ in range(50):
        large = large @ large / 64
    queued = torch.cuda.Event()
    queued.record()
    assert back.read() == [499500.0]
    # The work that was queued after the numbers has not been waited for.
    assert not queued.query()
    torch.cuda.synchronize()
