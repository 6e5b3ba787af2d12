"""Whole models as layers: what they compute is what the model computes, and what cannot be cut says so."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recycle_runtime.program.deferred_init import recording
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import Program
from recycle_runtime.program.model_layers import Body, WholeModel
from recycle_runtime.program.named_inputs import as_tuple

WIDTH, WORDS, LENGTH = 8, 16, 6
TOKENS = torch.arange(12).reshape(2, LENGTH) % WORDS


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        made = torch.tanh(self.linear(hidden))
        return made if mask is None else made * mask


class Model(nn.Module):
    """Positions in the model itself, a mask of the tokens, and a residual around the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor, shift: Tensor | None = None) -> Tensor:
        mask = (tokens > 2).unsqueeze(-1).double()
        hidden = self.embedding(tokens)
        hidden += self.places
        if shift is not None:
            hidden = hidden + shift
        for block in self.blocks:
            hidden = hidden + block(hidden, mask)
        return self.head(self.norm(hidden))


def whole(model: nn.Module, said: Any = None) -> WholeModel:
    return WholeModel(model.double(), None, said)


def run(model: WholeModel, inputs: Any, cut: Sequence[int]) -> Any:
    """Through chunks of so many layers."""
    layers = [layer for _, layer in model.build(0, len(model.groups), 0)]
    values, first = as_tuple(inputs), 0
    for count in cut:
        values = as_tuple(Body([_own(layer) for layer in layers[first : first + count]]).run(values, True))
        first += count
    return values[0]


def _own(layer: nn.Module) -> Any:
    return layer


@pytest.mark.parametrize("cut", [(5,), (1, 1, 1, 1, 1), (2, 3), (1, 4)])
@pytest.mark.parametrize("with_shift", [False, True])
def test_any_cut_computes_what_the_model_does(cut: tuple[int, ...], with_shift: bool) -> None:
    model = Model().double()
    inputs = {"tokens": TOKENS} | ({"shift": torch.randn(2, LENGTH, WIDTH).double()} if with_shift else {})
    made = run(whole(copy.deepcopy(model)), inputs, cut)
    torch.testing.assert_close(made, model(**inputs), rtol=0, atol=0)


def test_layers_and_names() -> None:
    found = whole(Model())
    assert found.names == ["embedding", "blocks.0", "blocks.1", "blocks.2", "norm"]
    built = found.build(0, 5, 0)
    assert [list(layer.state_dict()) for _, layer in built[::4]] == [
        ["places", "embedding.weight"],
        ["norm.weight", "norm.bias", "head.weight", "head.bias"],
    ]
    said = whole(Model(), ["embedding", ["blocks.0", "blocks.1"], ["blocks.2", "norm", "head"]])
    assert said.names == ["embedding", "blocks.0", "blocks.2"]


class Numbered(Model):
    """As models are written whose pieces keep the names of the whole."""

    def __init__(self) -> None:
        super().__init__()
        blocks = nn.ModuleDict({str(number): Block() for number in range(3)})
        self.blocks = blocks  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, tokens: Tensor, shift: Tensor | None = None) -> Tensor:
        hidden = self.embedding(tokens) + self.places
        for block in self.blocks.values():
            hidden = hidden + block(hidden)
        return self.head(self.norm(hidden))


def test_a_dictionary_with_numbers_is_a_list_of_blocks() -> None:
    model = Numbered().double()
    assert whole(model).names == ["embedding", "blocks.0", "blocks.1", "blocks.2", "norm"]
    torch.testing.assert_close(
        run(whole(copy.deepcopy(model)), TOKENS, (1, 2, 2)), model(TOKENS), rtol=0, atol=0
    )
    named = nn.ModuleDict({"first": Block(), "1": Block()})
    with pytest.raises(ProgramError, match="ModuleDict has no list of blocks"):
        whole(named)


def test_parameters_get_memory_one_by_one() -> None:
    """The same numbers whichever layers are built, distributed as the model would have it."""
    with recording() as recipes:
        model = Model()
        nn.init.normal_(model.head.weight, std=100.0)
        model.double()
    assert all(parameter.is_meta for parameter in model.parameters())
    found = WholeModel(model, recipes)
    everything = {
        name: value for _, layer in found.build(0, 5, 3) for name, value in layer.state_dict().items()
    }
    assert {name: value.shape for name, value in everything.items()} == {
        name: value.shape for name, value in Model().state_dict().items()
    }
    assert 50 < float(everything["head.weight"].std()) < 200
    for name, value in found.build(4, 5, 3)[0][1].state_dict().items():
        assert torch.equal(value, everything[name])
    other = found.build(4, 5, 4)[0][1].state_dict()
    assert not torch.equal(other["head.weight"], everything["head.weight"])


class Unordered(nn.Module):
    """Parts that are registered in another order than they are used in, some of them in a method."""

    def __init__(self) -> None:
        super().__init__()
        self.head: Any = nn.Linear(WIDTH, WORDS)
        self.norm = nn.LayerNorm(WIDTH)
        self.body: Any = nn.ModuleDict(
            {"blocks": nn.ModuleList(Block() for _ in range(2)), "embedding": nn.Embedding(WORDS, WIDTH)}
        )

    def embedded(self, tokens: Tensor) -> Tensor:
        return self.body.embedding(tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        dtype = self.norm.weight.dtype
        hidden = self.embedded(tokens).to(dtype)
        for block in self.body.blocks:
            hidden = hidden + block(hidden)
        if self.head is None:
            return hidden
        return self.head(self.norm(hidden))


def test_layers_are_in_the_order_of_their_use() -> None:
    model = Unordered().double()
    found = whole(copy.deepcopy(model))
    assert found.names == ["body.embedding", "body.blocks.0", "body.blocks.1", "norm"]
    assert found.groups[-1].modules == ("norm", "head")
    torch.testing.assert_close(run(found, {"tokens": TOKENS}, (1, 2, 1)), model(TOKENS), rtol=0, atol=0)


def test_layers_that_are_named_are_in_that_order() -> None:
    said = ["body.embedding", "body.blocks", "head", "norm"]
    assert whole(Unordered(), said).names == [
        "body.embedding",
        "body.blocks.0",
        "body.blocks.1",
        "head",
        "norm",
    ]


class Glue(nn.Module):
    """Blocks with something around them that cannot be followed."""

    def __init__(self, between: Callable[["Glue", Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)
        self.late = nn.Parameter(torch.zeros(WIDTH))
        self.between = between

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.blocks[0](self.embedding(tokens))
        return self.head(self.blocks[1](self.between(self, hidden)))


def _again(model: Glue, hidden: Tensor) -> Tensor:
    return model.blocks[0](model.blocks[1](hidden))


def _late(model: Glue, hidden: Tensor) -> Tensor:
    return hidden + model.late


def _in_place(model: Glue, hidden: Tensor) -> Tensor:
    hidden.add_(1)
    return hidden


def _array(model: Glue, hidden: Tensor) -> Tensor:
    return hidden / float(hidden.detach().numpy().max())


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (
            _array,
            r"test_model_layers.py:\d+: the forward of Glue looks at values that its layers have computed",
        ),
        (_again, "calls blocks.0 after blocks.1, which is a later layer"),
        (_late, r"test_model_layers.py:\d+: parameter late is used in layer blocks.0"),
        (_in_place, r"test_model_layers.py:\d+: this uses what the forward of Glue changed in place"),
    ],
)
def test_what_cannot_be_cut(between: Callable[[Glue, Tensor], Tensor], words: str) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        run(whole(Glue(between)), TOKENS, (2, 2))
    assert caught.value.hint


def _decides(model: Glue, hidden: Tensor) -> Tensor:
    """By a number, and computes with one."""
    seen = float(hidden.detach().mean())
    return hidden if hidden.sum() > 1e9 else -hidden * seen


@pytest.mark.parametrize("cut", [(4,), (2, 2), (1, 1, 1, 1)])
def test_glue_that_decides_by_values(cut: tuple[int, ...]) -> None:
    model = Glue(_decides).double()
    plain = copy.deepcopy(model)
    layered = whole(model)
    for shift in range(3):
        tokens = (TOKENS + shift) % WORDS
        torch.testing.assert_close(run(layered, tokens, cut), plain(tokens), rtol=0, atol=0)


class Restless(nn.Module):
    """Decides by values, changes in place, keeps what it has computed, and calls what is not torch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 3)
        self.penalty = torch.zeros(())

    def forward(self, hidden: Tensor) -> Tensor:
        chosen = self.gate(hidden)
        self.penalty = chosen.square().mean()
        for expert in chosen.argmax(-1).unique().tolist():
            hidden = hidden + expert * torch.tanh(self.linear(hidden))
        if hidden.max() > 0.5:
            hidden = hidden / float(hidden.detach().numpy().max())
        return hidden


class Collecting(nn.Module):
    """Values that hooks and attributes hand to the loss, beside the main path."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Restless() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)
        for block in self.blocks:
            block.get_submodule("gate").register_forward_hook(_collect)

    def forward(self, tokens: Tensor) -> Tensor:
        COLLECTED.clear()
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        penalty = sum(getattr(block, "penalty") for block in self.blocks)  # noqa: B009
        return self.head(hidden) + penalty + torch.stack(COLLECTED).logsumexp(0).mean()


COLLECTED: list[Tensor] = []


def _collect(module: nn.Module, args: Any, output: Tensor) -> None:
    COLLECTED.append(output)


@pytest.mark.parametrize("cut", [(5,), (1, 4), (2, 2, 1), (1, 1, 1, 1, 1)])
def test_layers_are_boxes(cut: tuple[int, ...]) -> None:
    model = Collecting().double()
    plain = copy.deepcopy(model)
    layered = whole(model)
    for shift in range(2):
        tokens = (TOKENS + shift) % WORDS
        torch.testing.assert_close(run(layered, tokens, cut), plain(tokens), rtol=0, atol=0)


class Skipping(nn.Module):
    """The input is used again at the end, and forwards are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)
        self.register_buffer("seen", torch.zeros(()))
        self.forwards = 0

    def forward(self, hidden: Tensor) -> Tensor:
        states = [hidden]
        self.forwards += 1
        for block in self.blocks:
            states.append(block(states[-1]))
        self.get_buffer("seen").add_(1)
        return self.head(sum(states))


@pytest.mark.parametrize("cut", [(4,), (2, 2)])
def test_glue_that_reads_numbers_made_of_floating_point_inputs(cut: tuple[int, ...]) -> None:
    class Scaling(Skipping):
        def forward(self, hidden: Tensor) -> Tensor:
            for block in self.blocks:
                hidden = block(hidden)
                hidden = hidden / hidden.detach().abs().max().item()
            return self.head(hidden)

    model = Scaling().double()
    layered = whole(model)
    for _ in range(2):
        hidden = torch.randn(2, WIDTH, dtype=torch.float64)
        torch.testing.assert_close(run(layered, hidden, cut), model(hidden), rtol=0, atol=0)


@pytest.mark.parametrize("cut", [(4,), (1, 3), (2, 2), (1, 1, 1, 1)])
def test_an_input_that_is_used_beyond_the_first_cut(cut: tuple[int, ...]) -> None:
    model = Skipping().double()
    hidden = torch.randn(2, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(run(whole(model), hidden, cut), model(hidden), rtol=0, atol=0)


def test_counts_of_forwards_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    layers = [layer for _, layer in whole(Skipping()).build(0, 4, 0)]
    body = Body([_own(layer) for layer in layers])
    for _ in range(3):
        body.run(as_tuple(torch.randn(2, WIDTH, dtype=torch.float64)), True)
    (told,) = caplog.messages
    assert told.startswith("the forward of Skipping changes forwards, seen with every micro-batch")


@dataclass
class Given:
    hidden: Tensor


def _one_by_one(hidden: Tensor) -> Iterator[Tensor]:
    return iter([hidden])


def _first(model: Glue, given: Any) -> Any:
    return given.hidden if isinstance(given, Given) else next(given)


class Giving(Block):
    """Hands on what torch does not look into."""

    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Any:
        return self.kind(super().forward(hidden, mask))


@pytest.mark.parametrize(
    ("kind", "words", "hint"),
    [
        (Given, "blocks.0 gives a Given", "register_dataclass"),
        (_one_by_one, "blocks.0 gives a list_iterator", "tuples"),
    ],
)
def test_results_that_cannot_be_looked_into(kind: Callable[[Tensor], Any], words: str, hint: str) -> None:
    model = Glue(_first)
    model.blocks[0] = Giving(kind)
    with pytest.raises(ProgramError, match=words) as caught:
        run(whole(model), TOKENS, (2, 2))
    assert hint in str(caught.value.hint)


class Cache:
    def __init__(self) -> None:
        self.items: list[Tensor] = []


class Caching(Block):
    def forward(self, hidden: Tensor, mask: Any = None) -> Tensor:
        mask.items.append(super().forward(hidden))
        return mask.items[-1]


class Cached(Model):
    def forward(self, tokens: Tensor, shift: Tensor | None = None) -> Tensor:
        hidden, cache = self.embedding(tokens), Cache()
        for block in self.blocks:
            hidden = block(hidden, cache)
        return self.head(self.norm(sum(cache.items) + self.places * 0))


def test_a_cache_that_layers_fill() -> None:
    model = Cached()
    model.blocks = nn.ModuleList(Caching() for _ in range(3))
    with pytest.raises(ProgramError, match=r"blocks\.0 puts tensors into the Cache"):
        run(whole(model), TOKENS, (2, 3))


def test_scripted_modules_are_refused() -> None:
    model = Model()
    model.blocks[1] = torch.jit.script(nn.Linear(2, 2))  # pyright: ignore
    with pytest.raises(ProgramError, match=r"blocks\.1 is a ScriptModule"):
        whole(model)


def test_shapes_that_depend_on_numbers() -> None:
    def shorter(model: Glue, hidden: Tensor) -> Tensor:
        return hidden[:, : 1 + int(hidden.abs().sum()) % 5]

    model = whole(Glue(shorter))
    with pytest.raises(ProgramError, match=r"blocks.1 gives float64.* expect float64"):
        for shift in range(WORDS):
            run(model, (TOKENS * shift) % WORDS, (2, 2))


def _fickle(model: Glue, hidden: Tensor) -> Tensor:
    return hidden.tanh() if hidden[0, 0, 0] > 0 else hidden.sigmoid()


def test_glue_that_changes_its_mind() -> None:
    """Any way that some micro-batch of this shape has shown can be gone."""
    model = Glue(_fickle).double()
    plain, layered = copy.deepcopy(model), whole(model)
    for shift in range(6):
        tokens = (TOKENS + shift) % WORDS
        torch.testing.assert_close(run(layered, tokens, (2, 2)), plain(tokens), rtol=0, atol=0)


def test_a_way_that_was_not_shown() -> None:
    """With other weights than when new, glue does what no trace has seen: refused, with its line."""
    layered = whole(Glue(_fickle))
    refused: list[str] = []
    for sign in (1.0, -1.0):
        layers = [_own(layer) for _, layer in layered.build(0, 4, 0)]
        with torch.no_grad():
            layers[1].get_parameter("blocks.0.linear.weight").zero_()
            layers[1].get_parameter("blocks.0.linear.bias").fill_(sign)
        try:
            Body(layers[:2]).run(as_tuple(TOKENS), True)
        except ProgramError as error:
            refused.append(str(error))
    assert len(refused) == 1
    assert "goes another way with these values" in refused[0]
    assert "test_model_layers.py:" in refused[0]


def test_no_list_of_blocks() -> None:
    with pytest.raises(ProgramError, match="Linear has no list of blocks"):
        whole(nn.Linear(2, 2))
    with pytest.raises(ProgramError, match="LAYERS names 'bocks', which Model does not have"):
        whole(Model(), ["bocks"])


def _descent(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters)


def _tokens(index: int) -> tuple[Tensor, Tensor]:
    return TOKENS, TOKENS


def test_a_compiled_model_keeps_its_names(tmp_path: Path) -> None:
    names: dict[str, Any] = {
        "model": lambda: torch.compile(Model()),
        "optimizer": _descent,
        "microbatch": _tokens,
    }
    built = build_layers(Program(tmp_path / "program.py", names), 0)
    found = {name for _, layer in built for name in layer.state_dict()}
    assert found == set(Model().state_dict())
