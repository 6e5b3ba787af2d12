"""The border between the options of a command and the arguments of a script; the words of both again."""

import shlex
from pathlib import Path

import pytest

from recycle_runtime.cli.commands import local
from recycle_runtime.cli.main import main, parse_arguments
from recycle_runtime.cli.options.script import check_script, note_options_of_script
from recycle_runtime.cli.output import Output, UsageError
from recycle_runtime.plan.bundle import MAGIC


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("local a.plan train.py --seed 7 --flag x", ["train.py", "--seed", "7", "--flag", "x"]),
        ("local --seed 3 a.plan --kill 1:0@3 --quiet train.py --kill", ["train.py", "--kill"]),
        ("--quiet local a.plan --seed=3 --rej 1:0@5 train.py", ["train.py"]),
        ("local a.plan --program p.py --steps 3", []),
        (
            "agent a.plan --coordinator h:1 --workers-per-node 2 --state s t.py -- x",
            ["t.py", "--", "x"],
        ),
    ],
)
def test_the_words_of_a_script(words: str, script: list[str]) -> None:
    arguments = parse_arguments(words.split())
    assert arguments.script_words == script
    assert arguments.bundle == "a.plan"


def test_either_a_script_or_a_program(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert check_script(parse_arguments(["local", "a.plan", str(script), "3"])) == (str(script), "3")
    for words in (["local", "a.plan"], ["local", "a.plan", "--program", str(script), str(script)]):
        with pytest.raises(UsageError, match="either a script"):
            check_script(parse_arguments(words))


def test_a_plan_is_no_script(tmp_path: Path) -> None:
    plan = tmp_path / "a.plan"
    plan.write_bytes(MAGIC)
    for words in (["--page", str(plan)], ["--program", str(plan)]):
        with pytest.raises(UsageError, match=r"a\.plan is a plan, and stands where the program should"):
            check_script(parse_arguments(["local", str(plan), *words]))


def test_steps_of_a_script_are_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, script = tmp_path / "a.plan", tmp_path / "train.py"
    plan.touch()
    script.touch()
    assert main(["local", str(plan), "--steps", "4", str(script)]) == 2
    assert "--steps is for --program FILE: a script says with trainer.steps(n)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--metrics=m", "--kill", "1:0@3", "--my-arg"], "--metrics, --kill after train.py go to the script"),
        (["--checkpoint", "kept"], "--checkpoint after train.py goes to the script"),
        (["--seed", "3", "--my-arg", "seed"], ""),
    ],
)
def test_options_behind_the_script(
    tmp_path: Path,
    words: list[str],
    note: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that it does not have itself are probably meant for the command."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text('parser.add_argument("--seed", type=int)\n')
    for quiet in (False, True):
        arguments = parse_arguments(["local", "a.plan", "train.py", *words])
        note_options_of_script(arguments, Output("recycle-run", quiet=quiet))
        said = capsys.readouterr().err
        whole = f"recycle-run: note: {note}; options of recycle-run local come before it\n"
        assert said == ("" if quiet or not note else whole)


_FAULTS = "--kill 1:0@3 --stop 1:1@3 --rejoin 1:0@5 --fault exit=0:0@4 --chaos 3 --chaos-events 7"
_KEPT = (
    "--quiet --no-color --log-level debug --log-file log --device cuda --seed 7 --undo host "
    "--cuda-graphs off --failed 0:1 --failed 1:0,1:1 --check-peers 0 --max-skipped 3 --checkpoint kept "
    "--checkpoint-every 5 --max-resumes 0 --stop-timeout 9.5 --neighbour-copies 2 --accept-changes "
    "--mtbf 60.0 --replan off --replan-every 8 --plan-ahead off --recut always "
    "--heartbeat-timeout 20.0 --debug 0:0 "
    "--instruction-timeout 61.0 --first-step-timeout 62.0 --node-timeout 63.0 --restart-workers off "
    "--relay on --tls --trace t.json --metrics=-m --page 0 --tensorboard board --save saved"
)


@pytest.mark.parametrize("program", ["--program 'my program.py' --steps 9", "train.py --seed 3 --kill x"])
def test_a_run_is_resumed_with_all_its_options_but_faults(program: str) -> None:
    """`--metrics` was dropped, and all but seven others."""

    def options(words: str) -> dict[str, object]:
        found = vars(parse_arguments(shlex.split(words)))
        del found["own_options"]
        return found

    given = parse_arguments(shlex.split(f"local a.plan {_KEPT} {_FAULTS} {program}"))
    untouched = vars(parse_arguments(["local", "a.plan"]))
    same = {name for name in untouched if untouched[name] == getattr(given, name)}
    assert same <= {"command", "bundle", "resume", "run", "program", "steps", "script", "script_words"}
    resumed = local._resume_command(given)  # pyright: ignore[reportPrivateUsage]
    assert resumed.startswith("recycle-run local a.plan --quiet ") and " --metrics=-m " in resumed
    expected = options(f"local a.plan {_KEPT} --resume {program}")
    assert options(resumed.removeprefix("recycle-run ")) == expected


def test_options_that_were_not_given_are_left_out_when_a_run_is_resumed() -> None:
    given = parse_arguments(
        ["local", "a.plan", "--program", "p.py", "--steps", "9", "--checkpoint", "kept", "--metrics", "m"]
    )
    resumed = local._resume_command(given)  # pyright: ignore[reportPrivateUsage]
    assert (
        resumed == "recycle-run local a.plan --program p.py --steps 9 --checkpoint kept --resume --metrics m"
    )


def test_a_script_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "a.plan"
    plan.touch()
    assert main(["local", str(plan), str(tmp_path / "train.py")]) == 1
    assert "train.py" in capsys.readouterr().err
