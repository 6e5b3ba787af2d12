"""Buffers can be put back to what they were, however they were changed."""

import torch
from torch import nn

from recycle_runtime.execution.kept_buffers import BufferHistory, KeptBuffers
from recycle_runtime.experts.mixture import MixtureOfExperts


class Counter(nn.Module):
    """Writes to one buffer, replaces another, and fills a third that was empty."""

    written: torch.Tensor
    replaced: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("written", torch.zeros(3))
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("empty", None)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.written += 1
        self.replaced = torch.cat([self.replaced, torch.ones(1)])
        self.empty = torch.ones(1)
        return value


def test_put_back_and_run_again() -> None:
    module, value = nn.Sequential(Counter(), nn.BatchNorm1d(2)), torch.randn(4, 2)
    kept = KeptBuffers(module)
    for step in range(3):
        kept.keep()
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        module(value)
        after = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        for _ in range(2):
            kept.put_back()
            assert_equal(module.state_dict(), before)
            module(value)
            assert_equal(module.state_dict(), after)
        assert module.state_dict()["0.replaced"].shape == (3 + step,)


def test_a_shared_buffer_is_one() -> None:
    first, second = Counter(), Counter()
    second.written = first.written
    kept = KeptBuffers(nn.ModuleList([first, second]))
    kept.keep()
    first.written.fill_(7)
    second.written = torch.ones(3)
    kept.put_back()
    assert second.written is first.written
    assert torch.equal(first.written, torch.zeros(3))


def test_a_step_after_one_that_was_run_again_begins_where_that_left_off() -> None:
    """Run again, it may have seen other micro-batches."""
    module = Counter()
    history = BufferHistory(module)
    for step in (0, 1):
        history.begin(step)
        module.written += 1
    assert history.go_back(0)
    history.begin(0)
    assert torch.equal(module.written, torch.zeros(3))
    module.written += 5
    history.begin(1)
    assert torch.equal(module.written, torch.full((3,), 5.0))
    module.written += 1
    history.begin(1)
    assert torch.equal(module.written, torch.full((3,), 5.0))
    assert not history.go_back(7)


def test_nothing_to_keep() -> None:
    kept = KeptBuffers(nn.Linear(2, 2))
    kept.keep()
    kept.put_back()


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_buffers_that_forwards_may_read_are_named() -> None:
    """Not those of norms, which have no influence in training, nor those that nothing changes, nor the bias
    of experts, which peers move together."""
    mixture = MixtureOfExperts(2, lambda: nn.Linear(2, 2), experts=3, active=1, balancing_rate=0.1)
    module = nn.Sequential(nn.BatchNorm1d(2), Counter(), mixture)
    module.register_buffer("constant", torch.ones(2))
    history = BufferHistory(module)
    history.begin(4)
    assert history.read_by_forwards(4) == []
    module(torch.randn(4, 2))
    mixture.balance()
    assert mixture.get_buffer("balance_steps").any()
    assert history.read_by_forwards(4) == ["1.written", "1.replaced", "1.empty"]
    assert history.read_by_forwards(5) == [], "it has not begun"
