"""Memory of a micro-batch: after its input gradient what the weights need, after those nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from bench.split_backward import Block, blocks, layers
from recycle_runtime.execution.split_backward import prepare
from tests.runtime.execution.split_backward.compare import tensors


class Ledger(TorchDispatchMode):
    """Every storage that operations inside have made, also those that only autograd holds."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors(result):
            storage = tensor.untyped_storage()
            self._storages[_key(storage)] = (StorageWeakRef(storage), storage.nbytes())
        return result

    def alive(self) -> list[int]:
        """Bytes of each storage that is still there, but for what belongs to the module."""
        own = [*self._module.parameters(), *self._module.buffers()]
        own += [each.grad for each in own if each.grad is not None]
        known = {_key(each.untyped_storage()) for each in own}
        found = ((key, size) for key, (storage, size) in self._storages.items() if not storage.expired())
        return sorted(size for key, size in found if key not in known)


def _key(storage: torch.UntypedStorage) -> int:
    return storage._cdata  # pyright: ignore[reportPrivateUsage]


def bytes_of(*shapes: Sequence[int]) -> list[int]:
    return sorted(4 * torch.Size(shape).numel() for shape in shapes)


def halves(stage: nn.Module, value: Tensor, warm: int = 0) -> tuple[list[int], int, list[int]]:
    """Bytes that are alive after each half, and what is said to be held between them."""
    split = prepare(stage)
    for _ in range(warm):
        split.backward_input([stage(value).sum()], [None]).run()
    ledger = Ledger(stage)
    with ledger:
        value = value.detach().requires_grad_(value.is_floating_point())
        output = stage(value)
        work = split.backward_input([output], [torch.ones(output.shape)])
        # As a worker does: the output is gone, the gradient of the input was sent.
        del output
        value.grad = None
        between, held = ledger.alive(), work.held_bytes
        work.run()
        del value
    return between, held, ledger.alive()


def test_a_linear_layer_keeps_its_input_and_its_gradient() -> None:
    stage = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    between, held, after = halves(stage, torch.randn(11, 5))
    # The result of tanh is the second layer's input.
    assert between == bytes_of((11, 5), (11, 7), (11, 7), (11, 3))
    assert held == sum(between)
    assert after == []


def test_what_only_the_input_needs_is_dropped() -> None:
    parts = [nn.LayerNorm(6), nn.GELU(), nn.Dropout(0.5), nn.Softmax(dim=-1), nn.BatchNorm1d(6)]
    between, held, after = halves(nn.Sequential(*parts), torch.randn(11, 6))
    # Only the input, which the caller holds.
    assert (between, held, after) == (bytes_of((11, 6)), 0, [])


def test_a_gpt_block_keeps_inputs_and_gradients_of_its_layers() -> None:
    between, held, after = halves(Block(8, 2), torch.randn(3, 5, 8))
    rows, width = 15, 8
    inputs, gradients = [width, width, width, 4 * width], [3 * width, width, 4 * width]
    # The gradient of the last layer is that of the block. The caller holds the input.
    assert between == bytes_of(*((rows, each) for each in [*inputs, *gradients, width, width]))
    assert held == sum(between) - 4 * rows * width
    assert after == []


def test_an_embedding_keeps_its_indices() -> None:
    between, held, after = halves(nn.Embedding(9, 6), torch.randint(0, 9, (4,)))
    assert between == [4 * 8, *bytes_of((4, 6))]
    assert held == sum(between)
    assert after == []


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: layers(6, 3), (4, 6)),
        (lambda: blocks(8, 2), (2, 5, 8)),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16), (2, 5, 8)),
        (
            lambda: nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.ConvTranspose1d(4, 2, 2)),
            (2, 3, 9),
        ),
        (lambda: nn.GRUCell(6, 6), (4, 6)),
    ],
)
def test_nothing_is_alive_after_the_weights(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    _, held, after = halves(make(), torch.randn(shape), warm=2)
    assert held > 0
    assert after == []


@pytest.mark.parametrize("make", [lambda: blocks(8, 2), lambda: nn.TransformerEncoderLayer(8, 2, 16)])
def test_a_forward_without_backward_leaves_nothing(make: Callable[[], nn.Module]) -> None:
    stage = make()
    prepare(stage)
    stage(torch.randn(2, 5, 8))
    ledger = Ledger(stage)
    with ledger:
        output = stage(torch.randn(2, 5, 8))
        assert ledger.alive()
        del output
    assert ledger.alive() == []


def test_autocast_keeps_inputs_in_low_precision() -> None:
    stage = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    split = prepare(stage)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = stage(torch.randn(11, 5))
    work = split.backward_input([output], [torch.ones_like(output)])
    assert work.held_bytes == 2 * 11 * (5 + 7 + 7 + 3)


def test_a_layer_is_dropped_as_soon_as_it_has_run() -> None:
    stage = layers(6, 4)
    split = prepare(stage)
    ledger = Ledger(stage)
    seen: list[int] = []
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with ledger:
        work = split.backward_input([stage(torch.randn(4, 6)).sum()], [None])

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "addmm_" in str(func):
                seen.append(len(ledger.alive()))
            return func(*args, **(kwargs or {}))

    with Watch():
        work.run()
    assert len(seen) == 4
    assert seen == sorted(seen, reverse=True) and seen[-1] < seen[0]
