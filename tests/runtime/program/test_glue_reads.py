"""Numbers that shapes alone decide are known without the device; whatever depends on more is not."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recycle_runtime.program.glue_reads import Answer, OtherReadsError, reads_watched
from recycle_runtime.program.model_layers import Body, WholeModel
from recycle_runtime.program.named_inputs import as_tuple

WIDTH = 4
TOKENS = torch.arange(6).reshape(2, 3)
Read = list[list[Answer]]
"""By each chunk."""


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
        return self.linear(hidden) * (2 if torch.ones(1).bool() else 1)


class Model(nn.Module):
    def __init__(self, look: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
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
    sums = torch.zeros(3)
    sums[0] = 2.0
    return bool(sums.sum() > 1)


def runs(look: Any, answers: Sequence[Answer] | None, cuts: Sequence[int]) -> tuple[Read, Tensor]:
    """What the chunks of a model have read, and its output."""
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    model = WholeModel(Model(look), None, None)
    layers = [module for _, module in model.build(0, len(model.groups), 0)]
    values: Any = TOKENS
    found: list[list[Answer]] = []
    for first, last in zip((0, *cuts), (*cuts, len(layers)), strict=True):
        body = layers[first].join(layers[first:last])  # pyright: ignore
        assert isinstance(body, Body)
        with reads_watched(answers) as reads:
            values = body.run(as_tuple(values), True)
        found.append(list(reads.read))
    return found, values


@pytest.mark.parametrize("cuts", [(), (2,)])
@pytest.mark.parametrize("look", [packed, filled_with_constants])
def test_what_shapes_alone_decide_is_known(look: Any, cuts: Sequence[int]) -> None:
    read, output = runs(look, None, cuts)
    assert read == [[True]] * (len(cuts) + 1)
    again, same = runs(look, [True], cuts)
    assert again == read
    assert torch.equal(output, same)


def test_answers_take_the_place_of_reading() -> None:
    _, output = runs(packed, None, ())
    _, other = runs(packed, [False], ())
    assert not torch.equal(output, other)


@pytest.mark.parametrize("look", [of_tokens, of_a_buffer, drawn, changed_in_place])
def test_what_more_decides_is_read_as_ever(look: Any) -> None:
    assert runs(look, None, ())[0] == [[]]
    assert runs(look, [False], ())[0] == [[]]


def test_reads_that_nobody_has_seen() -> None:
    with pytest.raises(OtherReadsError, match="something else"):
        runs(packed, [], ())


def test_a_forward_does_not_see_that_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert runs(packed, [True], ())[0] == [[True]]
    assert torch.cuda.is_current_stream_capturing()
    assert runs(packed, None, ())[0] == [[]]
