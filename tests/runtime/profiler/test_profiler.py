"""Measuring stages: what is counted, what is written, and that the compiler takes it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from recycle_runtime.cli.main import main
from recycle_runtime.devices import Device
from recycle_runtime.profiler import Options, links, measure, profile, profile_table
from recycle_runtime.profiler.meters import NOTHING, Stopwatch, Timing, beside_allocator, counting
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program, load_program

CPU = torch.device("cpu")
MLP = Path(__file__).resolve().parents[3] / "examples" / "programs" / "mlp.py"
JOB = """\
job measured {
  parallel { pipeline = 3  data = 2 }
  batch    { microbatches = 4 }
  profile from "measured.json"
  tolerate { failures = 1 }
}
"""


def program(stages: list[nn.Module], item: tuple[Any, Any], loss: Callable[[Any, Any], Any]) -> Program:
    """A program made here, of stages that are there already."""

    def build_stage(stage: int, _: int) -> nn.Module:
        return stages[stage]

    def batches(_: int) -> Iterator[Any]:
        yield item

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)

    names = {"build_stage": build_stage, "loss": loss, "batches": batches, "optimizer": optimizer}
    return Program(Path("made_here.py"), names)


def run(*words: str) -> int:
    """As `recycle-run` would."""
    return main(["profile", *words])


def test_a_timing_is_the_median_and_the_middle_half() -> None:
    assert Timing.of([5]) == (5, 5, 5)
    assert Timing.of([10, 30, 20, 50, 40]) == (30, 20, 40)
    assert Timing.of([10, 30, 20, 50, 40]).spread == pytest.approx(2 / 3)
    assert Timing(4, 2, 6).scaled(0.5) == (2, 1, 3)
    assert NOTHING.spread == 0
    result, time = Stopwatch(CPU).time(lambda: "done")
    assert (result, time > 0) == ("done", True)


def test_memory_counts_what_lives_and_was_not_there_before() -> None:
    constant = torch.ones(1000)
    with counting(CPU) as held:
        assert held() == 0
        kept = constant * 2
        view = kept[:10]
        same = constant[:500]
        temporary = kept + 1
        assert held() == 2 * 4000
        del temporary
        constant.add_(1)
        assert held() == 4000
        del kept
        assert held() == 4000
        del view, same
        assert held() == 0


def test_memory_sees_what_autograd_keeps() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    example = torch.randn(10, 8)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with counting(CPU) as held:
        inputs = example.clone()
        output = model(inputs)
        # The input, the result of ReLU, which is the input of the second layer, and the output.
        assert held() == 4 * 10 * (8 + 16 + 4)
        torch.autograd.backward(output.sum())
        del inputs, output
        assert held() == 0


def test_messages_and_reductions_take_time_unless_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert links.reduction(1 << 16, 1, CPU, 2) == NOTHING
    assert links.reduction(0, 3, CPU, 2) == NOTHING
    assert links.transfer(0, CPU, 2) == NOTHING
    assert links.reduction(1 << 16, 3, CPU, 2).median > 0
    assert links.transfer(1 << 16, CPU, 2).median > 0
    measured: list[int] = []

    def copies(size: int, device: torch.device, repeat: int) -> Timing:
        measured.append(size)
        return Timing(100, 90, 110)

    monkeypatch.setattr(links, "MOST_BYTES", 1000)
    monkeypatch.setattr(links, "_copy", copies)
    assert links.transfer(3000, torch.device("cuda"), 2) == (300, 270, 330)
    assert measured == [1000]


def test_the_compiler_takes_what_is_written(
    tmp_path: Path, recyclec: Callable[..., tuple[int, str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "measured.json"
    words = ("--program", str(MLP), "--stages", "3", "--pipelines", "2", "--repeat", "2")
    assert run(*words, "-o", str(output)) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "(I+W)/B" in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["measured.json"]
    written = json.loads(output.read_text())
    assert (written["device"], written["pipelines"], len(written["stages"])) == ("cpu", 2, 3)
    (tmp_path / "x.job").write_text(JOB)
    code, _, words_printed = recyclec("check", str(tmp_path / "x.job"))
    assert (code, "error" in words_printed) == (0, False)


def test_what_a_stage_costs() -> None:
    measured = profile(load_program(MLP), Options(stages=2, repeat=3, pipelines=2))
    first, last = measured.stages
    for stage in measured.stages:
        times = (stage.forward, stage.backward_input, stage.backward_weight, stage.backward, stage.optimizer)
        assert all(timing.median > 0 for timing in times)
        assert stage.reduce.median > 0
        row = stage.to_json()
        assert row["activation_bytes"] == max(stage.saved_bytes, stage.kept_bytes) > 0
        numbers = stage.gradient_bytes // 8
        # Four layers of 16 x 16 with biases, and one that widens or narrows; gradients may be padded.
        assert numbers >= 4 * (16 * 16 + 16)
        # Parameters and two moments.
        assert stage.parameter_bytes >= 3 * 8 * 4 * (16 * 16 + 16)
    assert first.boundary_bytes == 4 * 16 * 8
    assert first.transfer.median > 0
    assert (last.boundary_bytes, last.transfer) == (0, NOTHING)
    assert len(profile_table(measured).splitlines()) == 3
    assert measured.details["threads"] == 1


class Masked(nn.Module):
    """Hands a mask on beside the values; it takes no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, value: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(value) * mask, mask


class Sum(nn.Module):
    """No parameters."""

    def forward(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (value * mask).sum(1)


def test_stages_may_pass_several_tensors_and_have_no_parameters() -> None:
    frozen = Masked()
    frozen.requires_grad_(False)
    item = ((torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)), torch.zeros(3))
    source = program([frozen, Masked(), Sum()], item, nn.functional.mse_loss)
    measured = profile(source, Options(stages=3, repeat=1))
    assert [stage.gradient_bytes > 0 for stage in measured.stages] == [False, True, False]
    assert [stage.optimizer == NOTHING for stage in measured.stages] == [True, False, True]
    assert [stage.boundary_bytes for stage in measured.stages] == [3 * 4 * 5, 3 * 4 * 5, 0]
    rows = json.loads(measured.to_text())["stages"]
    assert min(row[key] for row in rows for key in ("forward", "backward_input", "backward_weight")) >= 1


def test_measuring_leaves_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    item = (torch.randn(3, 4), torch.zeros(3, 4))
    profile(
        program([nn.Linear(4, 4)], item, nn.functional.mse_loss), Options(1, repeat=1, threads=before + 1)
    )
    assert torch.get_num_threads() == before


def test_stages_that_do_not_fit_together_are_named() -> None:
    item = (torch.randn(3, 4), torch.zeros(3, 4))
    source = program([nn.Linear(4, 5), nn.Linear(4, 4)], item, nn.functional.mse_loss)
    with pytest.raises(ProgramError, match=r"^made_here.py: stage 1 of 2: RuntimeError: .*shapes"):
        profile(source, Options(stages=2, repeat=1))
    source = program([nn.LSTM(4, 4), nn.Linear(4, 4)], item, nn.functional.mse_loss)
    with pytest.raises(
        ProgramError, match=r"^made_here.py: stage 0 of 2: .* a stage must give a tensor or a"
    ):
        profile(source, Options(stages=2, repeat=1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--program", "nowhere.py", "-o", "p.json"), "nowhere.py: there is no such file"),
        (("--program", str(MLP), "-o", "no/p.json"), "cannot write no/p.json: there is no folder no"),
        (("--program", str(MLP), "-o", "."), "cannot write .: it is a folder"),
        (("--program", "bad.py", "-o", "p.json"), "bad.py:2: loading the program: ZeroDivisionError"),
    ],
)
def test_mistakes_are_said_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("\n1 / 0\n")
    assert run(*words, "--stages", "2") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"recycle-run: error: {said}")
    assert "Traceback" not in error
    assert not (tmp_path / "p.json").exists()


def test_overhead_is_what_is_used_beside_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, gib = torch.device("cuda", 0), 1 << 30
    found = {"synchronize": None, "mem_get_info": (10 * gib, 16 * gib), "memory_reserved": 5 * gib}
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, Mock(return_value=value))
    assert beside_allocator(cuda) == gib
    one, several = Options(1, device="cuda"), Options(1, device="cuda", devices=(Device("0", "0"),) * 2)
    assert measure.overhead(cuda, one)["overhead_bytes"] == gib
    assert "without NCCL" in measure.overhead(cuda, one)["overhead_measured"]
    assert "with NCCL" in measure.overhead(cuda, several)["overhead_measured"]
    # What others use cannot be told apart.
    assert measure.overhead(cuda, replace(one, is_crowded=True)) == {}
    monkeypatch.setattr(torch.cuda, "memory_reserved", Mock(return_value=7 * gib))
    assert beside_allocator(cuda) == 0
    assert (beside_allocator(CPU), measure.overhead(CPU, Options(1))) == (0, {})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--program", str(MLP), "--stages", "2", "-o", str(tmp_path / "p.json"), "--device", "cuda")
    assert run(*words) == 1
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("stages", ["0", "-1", "two", "1e3", "99999999999"])
def test_numbers_on_the_command_line_are_checked(stages: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--program", str(MLP), "--stages", stages, "-o", "p.json")
    assert caught.value.code == 2


class Turned(nn.Module):
    """Gives what its inner module gives, with two dimensions changed round."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.inner(value).transpose(0, 1)


def test_it_says_what_is_copied_before_it_is_sent() -> None:
    stages: list[nn.Module] = [Turned(nn.Linear(4, 4)), nn.Linear(4, 4), nn.Linear(4, 4)]
    item = torch.zeros(3, 2, 4), torch.zeros(2, 3, 4)
    measured = profile(program(stages, item, nn.functional.mse_loss), Options(stages=3, repeat=1))
    assert measured.details["computed"] == (
        "3 layers: 3 eager; 2 tensors handed on: 1 not contiguous, "
        "96 B a micro-batch copied before it is sent"
    )
