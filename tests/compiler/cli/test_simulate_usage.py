"""Arguments that are refused before anything is read."""

from dataclasses import fields
from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.cli.options.fleet import COSTS
from recycle_compiler.fleet.setting import ChangeCosts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: --trace"),
        (["--trace", "none", "--against", "megatron"], "got 'megatron'"),
        (["--trace", "none", "--hours", "0"], "from 0.001 to 87600, got 0"),
        (["--trace", "none", "--hours", "nan"], "got nan"),
        (["--trace", "none", "--seed", "9999999999"], "from 0 to 999999999"),
        (["--trace", "none", "--gpus-per-node", "0"], "at least 1"),
        (["--trace", "none", "--layers", "65537"], "from 1 to 65536, got 65537"),
        (["--trace", "none", "--costs", "regroup=fast"], "regroup must be a time like 2s"),
        (["--trace", "none", "--costs", "restart=2y"], "restart must be from 0 to 366d"),
        (["--trace", "none", "--costs", "checkpoint-every=0"], "checkpoint-every must be from 1ms to 366d"),
        (["--trace", "none", "--costs", "copy-rate=0"], "copy-rate must be a number of bytes/s from 1 to"),
        (["--trace", "none", "--costs", "copy-rate=1h"], "copy-rate must be a number of bytes/s from 1 to"),
        (["--trace", "none", "--costs", "undone=2m"], "undone must be a number of iterations from 0 to 1000"),
        (["--trace", "none", "--costs", "speed=1"], "got 'speed'"),
        (["--trace", "none", "--costs", "restart=1,undone=1,restart=2"], "restart is given twice"),
        (["--trace", "none", "--slot", "0"], "above 0"),
        (["--trace", "none", "--jitter", "101"], "from 0 to 100"),
        (
            ["--trace", "none", "--price", "-2/GPU-hour"],
            "must be like 2.5/GPU-hour, above 0 and at most 1000000000, got '-2/GPU-hour'",
        ),
        (["--trace", "none", "--replace", "-2h"], "must be a time like 10ms or 1.5s, above 0, got -2h"),
        (["--trace", "none", "--costs", "-x"], "begins with a dash is written as in --option=-value"),
        (["--trace", "none", "--format", "svg"], "one of table, json, html"),
        (["--trace", "none", "--layout", "random"], "one of pipeline, stage"),
    ],
)
def test_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["simulate", "x.plan", *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_a_trace_whose_failures_come_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "late.json"
    trace.write_text('{"at": "1h", "failed": ["0:0"]}\n', encoding="utf-8")
    simulate = ["simulate", "examples/figure3.job", "--failures", "1", "--jobs", "1", "--trace", str(trace)]
    assert main([*simulate, "--against", "fault-scaled"]) == 0
    assert "all failures of late.json are at its end, 1h" in capsys.readouterr().err
    assert main([*simulate, "--against", "fault-scaled", "--hours", "2"]) == 0
    assert "at its end" not in capsys.readouterr().err


def test_every_cost_can_be_named() -> None:
    assert [name.replace("-", "_") for name in COSTS] == [field.name for field in fields(ChangeCosts)]
