"""Numbers that shapes alone decide are known without the device; whatever depends on more is not."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recycle_runtime.program.glue_reads import OtherReadsError, captured_reads, forget_reads, reads_wanted
from recycle_runtime.program.model_layers import Body, WholeModel
from recycle_runtime.program.named_inputs import as_tuple

WIDTH = 4
TOKENS = torch.arange(6).reshape(2, 3)
LAYERS = range(3)


@pytest.fixture(autouse=True)
def nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without CUDA cannot say."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        # What a layer reads is its own affair.
        return self.linear(hidden) * int(torch.ones(1))


class Model(nn.Module):
    least = 0

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in LAYERS)
        self.register_buffer("ones", torch.ones(3), persistent=False)
        self.look = look

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        if self.look(self, tokens):
            hidden = hidden + 1
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


def packed(_: Any, tokens: Tensor) -> bool:
    """As `transformers` asks whether there are several sequences in a row."""
    places = torch.arange(tokens.shape[1]).unsqueeze(0).expand(len(tokens), -1)
    steps = torch.diff(places, prepend=places[:, :1] - 1, dim=-1)
    same = (steps != 1).cumsum(-1)
    return not torch.cuda.is_current_stream_capturing() and bool((same[:, -1] == 0).all())


def of_tokens(_: Any, tokens: Tensor) -> bool:
    return bool((tokens >= 0).all())


def of_a_buffer(model: Any, _: Tensor) -> bool:
    return bool((model.ones > 0).all())


def drawn(_: Any, tokens: Tensor) -> bool:
    return bool(torch.rand(len(tokens)).sum() >= 0)


def changed_in_place(_: Any, tokens: Tensor) -> bool:
    sums = torch.zeros(3)
    view = sums[1:]
    view += tokens[0, 1:]
    return bool(sums.sum() > 0)


def filled_with_constants(_: Any, tokens: Tensor) -> bool:
    sums = torch.zeros(tokens.shape[1])
    sums[0] = 2.0
    return bool(sums.sum() > 1)


class Counted(TorchFunctionMode):
    """Counts what is really read."""

    def __init__(self) -> None:
        super().__init__()
        self.glue = self.layers = self.counts = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.glue += getattr(func, "__name__", "") == "__bool__"
        self.layers += getattr(func, "__name__", "") == "__int__"
        self.counts += getattr(func, "__name__", "") == "bincount"
        return func(*args, **(kwargs or {}))


def bodies(look: Any, cuts: Sequence[int], kind: Callable[[Any], nn.Module] = Model) -> list[Body]:
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model = WholeModel(kind(look), None, None)
    layers: Any = [module for _, module in model.build(0, len(model.groups), 0)]
    return [Body(layers[first:last]) for first, last in pairwise((0, *cuts, len(layers)))]


def run(chunks: Sequence[Body], tokens: Tensor = TOKENS) -> tuple[int, Tensor]:
    """Number of times that glue has really read, and the output."""
    values: Any = tokens
    with Counted() as counted, reads_wanted():
        for body in chunks:
            values = body.run(as_tuple(values), True)
    assert counted.layers >= len(LAYERS)
    return counted.glue, values


@pytest.mark.parametrize("cuts", [(), (2,)])
@pytest.mark.parametrize("look", [packed, filled_with_constants])
def test_what_shapes_alone_decide_is_read_once(look: Any, cuts: Sequence[int]) -> None:
    chunks = bodies(look, cuts)
    forget_reads()
    read, output = run(chunks)
    assert read == 1
    for _ in range(3):
        again, same = run(chunks)
        assert again == 0
        assert torch.equal(output, same)
    assert run(chunks, torch.arange(4).reshape(2, 2))[0] == 1, "other shapes, other names"


@pytest.mark.parametrize("look", [of_tokens, of_a_buffer, drawn, changed_in_place])
def test_what_more_decides_is_read_every_time(look: Any) -> None:
    chunks = bodies(look, ())
    assert [run(chunks)[0] for _ in range(4)] == [1, 1, 1, 1]


def test_a_number_of_the_host_is_part_of_the_name() -> None:
    def look(model: Any, tokens: Tensor) -> bool:
        return bool((torch.arange(tokens.shape[1]) > model.least).all())

    chunks, found = bodies(look, ()), list[Tensor]()
    for least in (-1, 1, -1, 1):
        Model.least = least
        found.append(run(chunks)[1])
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_a_forward_that_is_captured_does_not_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = bodies(packed, ())
    forget_reads()
    with pytest.raises(OtherReadsError, match="something else"), captured_reads():
        run(chunks)
    output = run(chunks)[1]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not torch.equal(run(chunks)[1], output)
    with captured_reads():
        assert torch.equal(run(chunks)[1], output)
    assert torch.cuda.is_current_stream_capturing()


def nothing(_: Any, tokens: Tensor) -> bool:
    return False


class Routed(Model):
    """Counts after its layers how often each of them is chosen, as losses of mixtures of experts do."""

    def __init__(self, count: Any) -> None:
        super().__init__(nothing)
        self.count = count

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = super().forward(tokens)
        return hidden.sum() + self.count(hidden.softmax(-1), tokens)[:WIDTH].double().std()


def chosen(probabilities: Tensor, _: Tensor) -> Tensor:
    selected = torch.topk(probabilities, 2, dim=-1)[1]
    return torch.bincount(selected.reshape(-1), minlength=WIDTH)


def first_choice(probabilities: Tensor, _: Tensor) -> Tensor:
    return probabilities.argmax(dim=-1).flatten().bincount(minlength=WIDTH + 2)


def perhaps_too_few(probabilities: Tensor, _: Tensor) -> Tensor:
    return torch.bincount(torch.topk(probabilities, 2).indices.reshape(-1), minlength=WIDTH - 1)


def tokens_themselves(_: Tensor, tokens: Tensor) -> Tensor:
    return torch.bincount(tokens.reshape(-1), minlength=8)


def moved(probabilities: Tensor, _: Tensor) -> Tensor:
    places = probabilities.argmax(-1)
    places += 1
    return torch.bincount(places.reshape(-1), minlength=WIDTH)


def weighted(probabilities: Tensor, _: Tensor) -> Tensor:
    best = probabilities.argmax(-1).reshape(-1)
    return torch.bincount(best, torch.ones(len(best), dtype=torch.float64), minlength=WIDTH)


@pytest.mark.parametrize(
    ("count", "asks"),
    [(chosen, 0), (first_choice, 0), (perhaps_too_few, 1), (tokens_themselves, 1), (moved, 1), (weighted, 1)],
)
def test_places_along_an_axis_are_counted_without_asking(count: Any, asks: int) -> None:
    (whole,) = bodies(count, (), Routed)
    found: list[Tensor] = []
    for _ in range(4):
        with Counted() as counted, reads_wanted():
            found += as_tuple(whole.run((TOKENS,), True))
        assert counted.counts == asks
    with Counted() as counted:
        # Nobody watches.
        (expected,) = as_tuple(whole.run((TOKENS,), True))
    assert counted.counts == 1
    assert all(torch.equal(each, expected) for each in found)
