"""Parameters that are one, and copies of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.ties import give_copies, shared_ties, told_ties, whole_name

HERE = Path("program.py")


def gpt() -> list[tuple[str, nn.Module]]:
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    block = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    # Within a layer anything may be one.
    block[1].weight = block[0].weight
    return [("wte", embedding), ("blocks.0", block), ("lm_head", head)]


def test_layers_that_share_a_parameter() -> None:
    assert shared_ties(gpt()) == (("wte.weight", "lm_head.weight"),)


def test_every_layer_gets_a_copy() -> None:
    layers = gpt()
    layers[0][1].weight.tensor_parallel = True  # pyright: ignore
    give_copies(layers)
    first, block, last = (module for _, module in layers)
    assert first.weight is not last.weight and torch.equal(first.weight, last.weight)  # pyright: ignore
    assert isinstance(last.weight, nn.Parameter) and last.weight.tensor_parallel  # pyright: ignore
    assert len(list(block.parameters())) == 3
    assert shared_ties(layers) == ()


def test_the_first_name_counts() -> None:
    ties = (("wte.weight", "lm_head.weight"),)
    assert whole_name(ties, "lm_head.weight") == "wte.weight" == whole_name(ties, "wte.weight")
    assert whole_name(ties, "ln.weight") == "ln.weight"


def test_a_program_may_say_so() -> None:
    assert told_ties(HERE, {"TIED": [["a.weight", "b.weight"], ("c", "d", "e")]}) == (
        ("a.weight", "b.weight"),
        ("c", "d", "e"),
    )
    assert told_ties(HERE, {}) == ()


@pytest.mark.parametrize("value", ["wte", [("wte.weight",)], [("a", 1)], 3, [("a", "b"), "cd"]])
def test_what_is_no_list_of_names(value: Any) -> None:
    with pytest.raises(ProgramError, match=r"program.py: TIED must be a list of tuples"):
        told_ties(HERE, {"TIED": value})


def test_a_name_twice() -> None:
    with pytest.raises(ProgramError, match="TIED names b twice"):
        told_ties(HERE, {"TIED": [("a", "b"), ("b", "c")]})
