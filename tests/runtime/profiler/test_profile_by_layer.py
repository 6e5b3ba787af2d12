"""Measuring layers one by one: names, bytes that add up to a stage's, and that the compiler takes it."""

import json
from pathlib import Path

import pytest

from recycle_compiler.frontend import load_job
from recycle_runtime.cli.main import main
from recycle_runtime.profiler import Options, profile, profile_table
from recycle_runtime.profiler.report import over_ppm
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program
from tests.runtime.profiler.test_profiler import JOB

ROOT = Path(__file__).resolve().parents[3]
LAYERED = ROOT / "tests" / "runtime" / "training" / "programs" / "layered.py"
SHARED_EXPERTS = LAYERED.with_name("shared_experts.py")
WHOLE_STAGES = ROOT / "examples" / "programs" / "sequential.py"
NAMES = ("first", "norm", "body.0", "body.1", "body.2", "fork", "join", "again", "last")


def test_layers_add_up_to_the_stage_that_they_make() -> None:
    program = load_program(LAYERED)
    layers = profile(program, Options(None, repeat=1))
    (whole,) = profile(program, Options(1, repeat=1)).stages
    assert layers.layer_names == NAMES
    assert [line.split()[0] for line in profile_table(layers).splitlines()] == ["layer", *NAMES]
    for name in ("kept_bytes", "parameter_bytes", "resident_bytes", "gradient_bytes"):
        assert sum(getattr(layer, name) for layer in layers.stages) == getattr(whole, name), name
    # Each layer's input is held for it alone, even where nothing of it is saved.
    inputs = sum(layer.boundary_bytes for layer in layers.stages)
    saved = sum(layer.saved_bytes for layer in layers.stages)
    assert whole.saved_bytes <= saved <= whole.saved_bytes + inputs
    assert all(layer.resident_bytes >= 2 * layer.gradient_bytes for layer in layers.stages)


def test_experts_that_peers_can_share() -> None:
    """Two mixtures of four experts; five tokens of six float64 go to two experts each, and come back."""
    alone, among = (
        profile(load_program(SHARED_EXPERTS), Options(1, repeat=1, pipelines=peers)).stages[0]
        for peers in (1, 2)
    )
    assert among.exchange_bytes == 2 * 2 * (5 * 2) * 6 * 8
    assert among.slot_bytes * 4 == among.expert_bytes < among.weight_bytes
    assert among.exchange.median > 0 == alone.exchange.median


def test_one_reduction_is_shared_out_by_bytes() -> None:
    layers = profile(load_program(LAYERED), Options(None, repeat=1, pipelines=2)).stages
    total = sum(layer.gradient_bytes for layer in layers)
    whole = sum(layer.reduce.median for layer in layers)
    assert whole > 0
    for layer in layers:
        assert layer.reduce.median == pytest.approx(whole * layer.gradient_bytes / total, abs=len(layers))


def test_the_compiler_takes_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "measured.json"
    words = ["profile", "--program", str(LAYERED), "--pipelines", "2", "--repeat", "2", "-o", str(output)]
    assert main(words) == 0
    assert "measuring layer 8 of 9 (last)" in capsys.readouterr().err
    written = json.loads(output.read_text())
    assert tuple(layer["name"] for layer in written["layers"]) == NAMES
    (tmp_path / "x.job").write_text(JOB)
    job = load_job(tmp_path / "x.job").spec
    assert job.layer_costs is not None
    assert (sum(job.cut), job.layer_costs.count) == (9, 9)
    assert job.layer_costs.forward == tuple(layer["forward"] for layer in written["layers"])
    assert job.layer_costs.resident == tuple(layer["resident_bytes"] for layer in written["layers"])
    # What two workers took for a reduction is half of what very many take.
    assert job.layer_costs.reduce == tuple(2 * layer["reduce"] for layer in written["layers"])


@pytest.mark.parametrize("words", [["--layers"], []])
def test_a_program_of_whole_stages_has_no_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["profile", "--program", str(WHOLE_STAGES), *words, "-o", str(tmp_path / "p.json")]) == 1
    error = capsys.readouterr().err
    assert "gives whole stages, not layers" in error
    assert "hint: --stages S" in error


def test_stages_and_layers_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["profile", "--program", str(WHOLE_STAGES), "--stages", "2", "--layers", "-o", "p.json"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_a_layer_that_does_not_fit_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        LAYERED.read_text().replace('("last", nn.Linear(WIDTH,', '("last", nn.Linear(WIDTH + 1,')
    )
    with pytest.raises(ProgramError, match=r"layer 8 of 9 \(last\): RuntimeError: .*shapes"):
        profile(load_program(tmp_path / "odd.py"), Options(None, repeat=1))


def even_program(folder: Path) -> Path:
    """Six samples in a micro-batch."""
    path = folder / "even.py"
    path.write_text(LAYERED.read_text().replace("torch.randn(5, WIDTH", "torch.randn(6, WIDTH"))
    return path


def test_split_is_auto_with_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "measured.json"
    words = ["profile", "--program", str(even_program(tmp_path)), "--repeat", "2", "-o", str(output)]
    assert main(words) == 0
    written = json.loads(output.read_text())
    kinds = ("forward", "backward_input", "backward_weight")
    whole = sum(layer[kind] for layer in written["layers"] for kind in kinds)
    halves = sum(layer[f"half_{kind}"] for layer in written["layers"] for kind in kinds)
    # A time of nothing counts as 1 ns in a row.
    assert written["split_ppm"] == pytest.approx(max(0, 1_000_000 * (2 * halves / whole - 1)), abs=1_000)
    assert f"take {written['split_ppm'] / 10_000:.1f} % longer than the whole" in capsys.readouterr().err
    (tmp_path / "x.job").write_text(JOB.replace("microbatches = 4", "microbatches = 4  split = auto"))
    assert load_job(tmp_path / "x.job").spec.split_ppm == written["split_ppm"]


def test_nothing_is_said_of_halves_that_do_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five samples cannot be halved, and a program may want a certain number of them."""
    output = tmp_path / "measured.json"
    assert main(["profile", "--program", str(LAYERED), "--repeat", "1", "-o", str(output)]) == 0
    assert "cannot be split in two: a micro-batch does not have an even number" in capsys.readouterr().err
    assert "split_ppm" not in json.loads(output.read_text())
    path = even_program(tmp_path)
    path.write_text(
        path.read_text().replace("return torch.tanh(value), (", "value.view(6, 6)\n        return value, (")
    )
    measured = profile(load_program(path), Options(None, repeat=1))
    assert measured.split_ppm is None
    assert measured.why_not_split.startswith("RuntimeError: shape '[6, 6]' is invalid")


def test_what_halves_cost_is_never_less_than_nothing() -> None:
    assert over_ppm([100, 300], [60, 160]) == 100_000
    assert over_ppm([100], [40]) == 0
