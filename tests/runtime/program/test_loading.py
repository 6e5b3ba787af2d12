"""Loading the user's program: what is read, and one clear sentence for each mistake in it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.program.errors import ProgramError, blame
from recycle_runtime.program.loading import NEEDED, Program, load_program

GOOD = """\
import torch

def build_stage(stage, stages):
    return torch.nn.Linear(2, 2)

def loss(output, target):
    return (output - target).square().mean()

def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(3, 2, generator=generator), torch.zeros(3, 2)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


def write(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> tuple[str, str]:
    """The message with the folder left out, and the hint."""
    with pytest.raises(ProgramError) as caught:
        load_program(write(folder, text))
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{folder}/", ""), caught.value.hint


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_good_program(tmp_path: Path) -> None:
    program = load_program(write(tmp_path, GOOD))
    stage = program.build_stage(0, 1)
    data, target = next(program.batches(7))
    assert program.loss(stage(data), target).shape == ()
    assert isinstance(program.optimizer(list(stage.parameters())), torch.optim.SGD)
    assert program.clip_norm is None
    assert torch.equal(next(program.batches(7))[0], data)


def test_the_module_has_a_private_name_and_its_file_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, GOOD + "\nWHERE = __file__\nNAME = __name__\n", "named_otherwise.py")
    monkeypatch.chdir(tmp_path)
    load_program("named_otherwise.py")
    (loaded,) = [module for name, module in sys.modules.items() if name.startswith("_recycle_program_named")]
    assert str(tmp_path / "named_otherwise.py") == loaded.WHERE
    assert sys.modules[loaded.NAME] is loaded
    assert "named_otherwise" not in sys.modules
    assert not (tmp_path / "__pycache__").exists()


def test_dataclasses_and_neighbours_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path, "RATE = 0.25\n", "a_neighbour_of_the_program.py")
    head = "from dataclasses import dataclass\nfrom a_neighbour_of_the_program import RATE\n"
    data = "@dataclass\nclass Sizes:\n    rate: float = RATE\nCLIP_NORM = Sizes().rate\n"
    assert load_program(write(tmp_path, head + data + GOOD)).clip_norm == 0.25


@pytest.mark.parametrize(
    ("header", "given", "seen"),
    [
        ("stage, stages, group", "g", "g"),
        ("stage, stages, *, group=None", "g", "g"),
        ("stage, stages, **other", "g", None),
        ("stage, stages, depth=3", "g", None),
    ],
)
def test_a_group_reaches_only_who_asks_for_it(
    tmp_path: Path, header: str, given: str, seen: str | None
) -> None:
    got = "locals().get('group') or locals().get('other', {}).get('group')"
    body = f"    module = torch.nn.Linear(2, 2)\n    module.seen = {got}\n    return module\n"
    old = "def build_stage(stage, stages):\n    return torch.nn.Linear(2, 2)\n"
    text = replaced(old, f"def build_stage({header}):\n{body}")
    module: Any = load_program(write(tmp_path, text)).build_stage(0, 1, given)
    assert module.seen == seen


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"nowhere\.py: there is no such file$"):
        load_program(tmp_path / "nowhere.py")
    with pytest.raises(ProgramError, match=r"cannot read it: is a directory$"):
        load_program(tmp_path)


def test_a_syntax_error_names_the_line(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, "import torch\n\ndef loss(:\n")[0] == "program.py:3: syntax error: invalid syntax"
    )
    assert "null bytes" in refusal(tmp_path, "x = '\0'\n")[0]


def test_a_syntax_error_beside_it_names_the_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path, "def (\n", "a_broken_neighbour.py")
    message, _ = refusal(tmp_path, "import a_broken_neighbour\n")
    assert message == "a_broken_neighbour.py:1: syntax error: invalid syntax"


def test_an_exception_while_loading_names_the_users_line(tmp_path: Path) -> None:
    message, _ = refusal(tmp_path, "import json\n\ndef read():\n    return json.loads('{')\n\nread()\n")
    assert message.startswith("program.py:4: loading the program: JSONDecodeError: Expecting property name")
    message, _ = refusal(tmp_path, "import no_such_library\n")
    expected = "ModuleNotFoundError: No module named 'no_such_library'"
    assert message == f"program.py:1: loading the program: {expected}"
    message, _ = refusal(tmp_path, "\nraise SystemExit(3)\n")
    assert message == "program.py:2: loading the program: it ends the process (exit code 3)"


def test_missing_names_are_listed(tmp_path: Path) -> None:
    message, hint = refusal(tmp_path, "")
    assert message == "program.py: it does not define layers, loss, microbatch and optimizer"
    assert "batches(seed)" in hint
    message, hint = refusal(tmp_path, replaced("def build_stage", "def build_stages"))
    assert message == "program.py: it does not define layers"
    assert hint == "is `build_stages` meant to be `build_stage`?"


def test_names_must_be_functions_of_the_right_arguments(tmp_path: Path) -> None:
    message, hint = refusal(tmp_path, GOOD + "loss = 3\n")
    assert (message, hint) == ("program.py: loss must be a function, got 3", "define loss(output, target)")
    message, hint = refusal(tmp_path, replaced("loss(output, target)", "loss(output)"))
    assert message.startswith("program.py:6: loss(output) cannot be called as loss(output, target): ")
    assert hint == "it is called as loss(output, target), in this order"
    message, hint = refusal(tmp_path, replaced("(stage, stages)", "(stage, stages, depth)"))
    assert message.startswith("program.py:3: build_stage(stage, stages, depth) cannot be called as")


@pytest.mark.parametrize("value", ["0", "-1.0", "float('inf')", "float('nan')", "True", "'1'"])
def test_a_limit_on_the_norm_must_be_a_number_over_0(tmp_path: Path, value: str) -> None:
    message, hint = refusal(tmp_path, f"{GOOD}CLIP_NORM = {value}\n")
    assert message.startswith("program.py: CLIP_NORM must be a number over 0, got ")
    assert hint == "leave it out to clip nothing"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "return torch.nn.Linear(2, 2)",
            "pass",
            "py:3: build_stage must return a torch.nn.Module, got nothing",
        ),
        ("torch.optim.SGD(parameters, lr=0.1)", "3", "a torch.optim.Optimizer, got a value of type int"),
        (".square().mean()", "", "loss must return a tensor of one number, got one of shape (3, 2)"),
        (".square().mean()", ".square().mean().item()", "tensor of one number, got a value of type float"),
        ("Linear(2, 2)", "Linear(2, -2)", "program.py:4: build_stage(0, 1): RuntimeError: "),
    ],
)
def test_what_functions_return_is_checked(tmp_path: Path, old: str, new: str, words: str) -> None:
    program = load_program(write(tmp_path, replaced(old, new)))
    with pytest.raises(ProgramError) as caught:
        module = program.build_stage(0, 1)
        data, target = next(program.batches(0))
        program.loss(module(data), target)
        program.optimizer(list(module.parameters()))
    assert words in str(caught.value)


def test_batches_must_give_something_to_iterate_over() -> None:
    def nothing(*_: Any) -> None:
        pass

    names: dict[str, Any] = dict.fromkeys((*NEEDED, "layers", "batches"), nothing)
    with pytest.raises(ProgramError, match=r"batches must return an iterator over .*, got nothing"):
        Program(Path("made_here.py"), names).batches(0)


def test_blame_passes_on_what_is_already_said_and_what_is_no_error() -> None:
    path = Path("x.py")
    with pytest.raises(ProgramError, match=r"^said$"), blame(path, "something"):
        raise ProgramError("said")
    with pytest.raises(KeyboardInterrupt), blame(path, "something"):
        raise KeyboardInterrupt
    with (
        pytest.raises(ProgramError, match=r"^x.py: something: ValueError: a b\.*$"),
        blame(path, "something"),
    ):
        raise ValueError("a\n  b")
