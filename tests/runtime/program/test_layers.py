"""Programs by layers: the same numbers under every cut, and one clear sentence for each mistake."""

from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.execution.chunk import build_module
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import build_layers, layer_count, layers_of
from recycle_runtime.program.loading import Program, load_program
from tests.runtime.training.test_convert import LAYERED

REST = """
def loss(output, target):
    return (output - target).square().mean()

def batches(seed):
    yield torch.zeros(2, 3), torch.zeros(2, 3)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""

AT_ONCE = """
import torch
from torch import nn

def layers():
    return [(f"blocks.{number}", nn.Linear(3, 3)) for number in range(6)]
"""

AS_NEEDED = """
import torch
from torch import nn

LAYER_COUNT = 6
BUILT = []

def build_layers(first, last):
    BUILT.extend(range(first, last))
    return [(f"blocks.{number}", nn.Linear(3, 3)) for number in range(first, last)]
"""


def program(folder: Path, text: str) -> Program:
    path = folder / "program.py"
    path.write_text(text + REST)
    return load_program(path)


def refusal(folder: Path, text: str, cut: tuple[int, ...] = (), chunks: int = 2) -> tuple[str, str]:
    with pytest.raises(ProgramError) as caught:
        build_module(program(folder, text), 0, chunks, 0, cut=cut)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{folder}/", ""), caught.value.hint


@pytest.mark.parametrize("text", [AT_ONCE, AS_NEEDED])
def test_the_cut_changes_no_number_and_no_name(tmp_path: Path, text: str) -> None:
    loaded = program(tmp_path, text)
    assert loaded.is_layered and layer_count(loaded) == 6
    whole = build_module(loaded, 0, 1, 7).state_dict()
    assert next(iter(whole)) == "blocks.0.weight" and len(whole) == 12
    for cut in ((2, 4), (1, 1, 4), (5, 1), (1, 1, 1, 1, 1, 1)):
        found: dict[str, torch.Tensor] = {}
        for chunk in range(len(cut)):
            part = build_module(loaded, chunk, len(cut), 7, cut=cut).state_dict()
            assert len(part) == 2 * cut[chunk]
            found |= part
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())
    other = build_module(loaded, 0, 1, 8).state_dict()
    assert not torch.equal(other["blocks.0.weight"], whole["blocks.0.weight"])
    assert not torch.equal(whole["blocks.1.weight"], whole["blocks.0.weight"])


def test_only_what_is_needed_is_built(tmp_path: Path) -> None:
    loaded = program(tmp_path, AS_NEEDED)
    build_module(loaded, 1, 3, 0, cut=(3, 1, 2))
    (name, module), *_ = build_layers(loaded, 0, 4, 6)
    assert name == "blocks.4" and isinstance(module, torch.nn.Linear)
    built: Any = loaded.build_layers
    assert built(2, 4)[1][0] == "blocks.3"
    functions: dict[str, Any] = vars(loaded)["_functions"]
    assert functions["build_layers"].__globals__["BUILT"] == [3, 4, 5, 2, 3]


def test_without_a_cut_chunks_are_about_alike(tmp_path: Path) -> None:
    """By parameters where all layers are at hand: the first is worth all others here."""
    uneven = AT_ONCE.replace("nn.Linear(3, 3))", "nn.Linear(3, 30 if number == 0 else 3))")
    assert len(build_module(program(tmp_path, uneven), 0, 2, 0).state_dict()) == 2
    assert len(build_module(program(tmp_path, AS_NEEDED), 0, 2, 0).state_dict()) == 6


def test_numbers_of_the_layers_of_each_chunk() -> None:
    assert layers_of((3, 1, 2)) == [range(3), range(3, 4), range(4, 6)]


def test_a_layer_that_gives_a_tuple_gives_the_next_one_as_many_arguments() -> None:
    loaded = load_program(LAYERED)
    data, _ = next(loaded.batches(0))
    whole = build_module(loaded, 0, 1, 0).eval()
    expected = whole(data)
    # The sixth layer is the fork.
    first, second = (build_module(loaded, chunk, 2, 0, cut=(6, 3)).eval() for chunk in range(2))
    given = first(data)
    assert isinstance(given, tuple) and len(given) == 2
    assert torch.equal(second(*given), expected)


def test_other_numbers_of_layers_are_refused(tmp_path: Path) -> None:
    for text in (AT_ONCE, AS_NEEDED):
        message, hint = refusal(tmp_path, text, (3, 5))
        assert message == "program.py: the plan cuts 8 layers, and the program has 6"
        assert "embedding and head" in hint
    message, _ = refusal(tmp_path, AT_ONCE, chunks=7)
    assert message == "program.py: 6 layers cannot be cut into 7 stages of at least one layer each"
    unknown = AS_NEEDED.replace("LAYER_COUNT = 6", "")
    message, hint = refusal(tmp_path, unknown)
    assert message == "program.py: it does not say how many layers there are"
    assert hint == "define LAYER_COUNT beside build_layers"
    build_module(program(tmp_path, unknown), 1, 2, 0, cut=(2, 4))


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ("None", "py:5: layers must return a list of (name, module), got nothing"),
        ("[nn.Linear(3, 3)]", "layers must return pairs of a name and a torch.nn.Module, got Linear("),
        ("[('a', 3)]", "layers must return pairs of a name and a torch.nn.Module, got ('a', 3)"),
        ("[('a b', nn.Tanh())]", "a layer cannot be called 'a b'"),
        ("[('forward', nn.Tanh())]", "a layer cannot be called 'forward'"),
        ("[('a', nn.Tanh()), ('a', nn.Tanh())]", "two layers are called a, or one lies in the other"),
        ("[('a.b', nn.Tanh()), ('a', nn.Tanh())]", "two layers are called a.b, or one lies in the other"),
        (
            "(lambda one: [('a', one), ('b', one)])(nn.Linear(3, 3))",
            "layer b is layer a once more, and a plan may put them on two workers",
        ),
        (
            "(lambda a: [('a', nn.Sequential(a)), ('b', nn.Sequential(a))])(nn.Linear(3, 3))",
            "0 of layer b is in layer a too, and a plan may put them on two workers",
        ),
        ("[][0]", "program.py:6: layers(): IndexError: list index out of range"),
    ],
)
def test_mistakes_in_layers(tmp_path: Path, layers: str, said: str) -> None:
    text = f"import torch\nfrom torch import nn\n\n\ndef layers():\n    return {layers}\n"
    message, _ = refusal(tmp_path, text)
    assert said in message


def test_as_many_as_were_asked_for(tmp_path: Path) -> None:
    one_more = AS_NEEDED.replace("in range(first, last)]", "in range(first, last + 1)]")
    message, hint = refusal(tmp_path, one_more)
    assert message == "program.py:8: build_layers(0, 1) must return 1 layers, got 2"
    assert hint == "it returns the layers from first to last - 1"


def test_a_number_or_a_helper_may_be_called_layers(tmp_path: Path) -> None:
    """Programs that give whole stages have always been free to do so."""
    stages = "import torch\ndef build_stage(stage, stages):\n    return torch.nn.Linear(3, 3)\n"
    for more in ("layers = 8\n", "def layers(count):\n    return count\n"):
        assert program(tmp_path, stages + more).gives == "build_stage"
    assert program(tmp_path, stages + AT_ONCE).gives == "layers"
    with pytest.raises(ProgramError, match="layers must be a function, got 8"):
        program(tmp_path, "import torch\nlayers = 8\n")
    with pytest.raises(ProgramError, match="LAYER_COUNT must be a whole number from 1, got 0"):
        program(tmp_path, AS_NEEDED.replace("LAYER_COUNT = 6", "LAYER_COUNT = 0"))


def test_a_group_reaches_whoever_asks_for_it(tmp_path: Path) -> None:
    asks = AT_ONCE.replace("def layers():", "def layers(*, group=None):").replace("blocks.{", "{group}.{")
    assert build_layers(program(tmp_path, asks), 0, group="ranks")[5][0] == "ranks.5"
