"""Arguments that may be typed, and those that are refused with exit code 2."""

import pytest

from recycle_compiler.cli.main import main, parse_arguments
from recycle_compiler.version import __version__


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The last line on stderr of a command line that is refused."""
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["show", "x.plan", "--format", "png"],
            "one of grid, svg, html, json, asm, schedule, trace, csv",
        ),
        (["show", "x.plan", "--failures", "-1"], "--failures: must be a whole number of at least 0, got -1"),
        (["show", "x.plan", "--failures", "two"], "must be a whole number of at least 0, got two"),
        (["show", "x.plan", "--failures", "9" * 5000], "at least 0 and of at most 9 digits, got 5000"),
        (["show", "x.plan", "--failures", "1", "--failed", "0:0"], "not allowed with argument"),
        (
            ["show", "x.plan", "--failed", "1"],
            "must be workers like 0:2,1:3 (pipeline:stage, from 0), got '1'",
        ),
        (["show", "x.plan", "--failed", "0:1,"], "got ''"),
        (["compile", "x.job", "--jobs", "0"], "must be a whole number of at least 1, got 0"),
        (["compile", "x.job", "--techniques", "adaptive,fast"], "or none, got 'fast'"),
        (["compile", "x.job", "--techniques", ""], "or none, got ''"),
        (["frobnicate"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_usage_errors(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *argv)


def test_a_plan_needs_failed_or_slow_workers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "x.job"]) == 2
    words = "the following arguments are required: --failed, --slow, --layout or --workers"
    assert capsys.readouterr() == ("", f"recyclec: error: {words}\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show", "default: as wide as the terminal; 180 in a file or a pipe"),
        ("plan", "default: as wide as the terminal; 180 in a file or a pipe"),
        ("diff", "A file that cannot be read is exit 1 too: stderr then says why"),
    ],
)
def test_help_says_what_is_not_obvious(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("argv", [["--version"], ["show", "--version"], ["--quiet", "compile", "--version"]])
def test_version_works_anywhere(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert (stop.value.code, capsys.readouterr().out) == (0, f"recyclec {__version__}\n")


@pytest.mark.parametrize(
    ("argv", "quiet", "no_color"),
    [
        (["check", "a"], False, False),
        (["--quiet", "check", "a"], True, False),
        (["check", "a", "--quiet"], True, False),
        (["--no-color", "check", "--quiet", "a"], True, True),
        (["check", "a", "--no-color"], False, True),
    ],
)
def test_common_options_work_before_and_after_the_command(
    argv: list[str], quiet: bool, no_color: bool
) -> None:
    arguments = parse_arguments(argv)
    assert (arguments.quiet, arguments.no_color) == (quiet, no_color)


@pytest.mark.parametrize(
    "argv",
    [
        ["--log-level", "debug", "check", "a", "--log-file", "x.log"],
        ["check", "--log-file", "x.log", "a", "--log-level", "debug"],
        ["--log-level", "info", "check", "a", "--log-level", "debug", "--log-file", "x.log"],
    ],
)
def test_logging_options_work_before_and_after_the_command(argv: list[str]) -> None:
    arguments = parse_arguments(argv)
    assert (arguments.log_level, arguments.log_file) == ("debug", "x.log")


def test_failed_workers_are_sorted_and_distinct() -> None:
    assert parse_arguments(["show", "x", "--failed", "1:2,0:3,1:2"]).failed == ((0, 3), (1, 2))


def test_techniques() -> None:
    assert parse_arguments(["compile", "x", "--techniques", "none"]).techniques == ()
    assert parse_arguments(["compile", "x", "--techniques", "stagger,adaptive"]).techniques == (
        "stagger",
        "adaptive",
    )
    assert parse_arguments(["compile", "x"]).techniques is None
