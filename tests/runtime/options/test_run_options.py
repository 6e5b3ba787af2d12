"""Each option is defined once: it reaches every process that needs it, whatever starts the process."""

import argparse
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from recycle_runtime.cli.main import command_line, parse_arguments
from recycle_runtime.cli.options.run import read_options
from recycle_runtime.cli.output import UsageError
from recycle_runtime.options.option import Option, Path, at_least, build, number, options_of
from recycle_runtime.options.run import AGENT, COORDINATOR, LOCAL, NODE, RunOptions, command_words, told

WORDS_OF = {"P:S": "0:1", "PERCENT|off": 0.25, "P:S,P:S": ((0, 1), (1, 0))}
"""Values of options that take words of a certain form."""
STARTED = {COORDINATOR: ["--listen", "h:1"], AGENT: ["--coordinator", "h:1"]}
"""Processes of a run, and what they are told beside its options."""
DERIVED = {"bundle", "script", "resume_with"}
"""Fields that are no options: arguments of the command, and a word for an error."""


def other(option: Option) -> Any:
    """A value that is not the default, of the same kind."""
    usual, parser = option.default, option.parser
    if "choices" in parser:
        return next(
            value for value in map(option.read, parser["choices"]) if value != option.value(option.given)
        )
    if (value := WORDS_OF.get(parser.get("metavar", ""))) is not None:
        return value
    if parser.get("action") == "store_true":
        return True
    if (kind := parser.get("type")) is not None:
        return kind((usual or 0) + 5.5)
    return (f"-{option.name}", "0:1@2") if usual == () else f"-{option.name}"


def asked_for() -> RunOptions:
    """Options that are all others than usual."""
    found = [each for command in STARTED for each in options_of(RunOptions, command)]
    values: dict[Path, Any] = {path: other(option) for path, option in found}
    return build(RunOptions, values | {("bundle",): "a.plan"})


@pytest.mark.parametrize("command", STARTED)
def test_every_option_reaches_the_process_that_needs_it(command: str) -> None:
    options = asked_for()
    for path, option in options_of(RunOptions, command):
        assert told(options, command)[path[-1]] != option.value(option.given), path
    words = command_words(options, command, *STARTED[command])
    assert told(read_options(parse_arguments(words)), command) == told(options, command)


@pytest.mark.parametrize("command", STARTED)
def test_what_is_not_said_is_the_same_in_the_process(command: str) -> None:
    options = RunOptions("a.plan", workers_per_node=2, state="s", script=("t.py", "--seed", "3"))
    words = command_words(options, command, *STARTED[command])
    if command == AGENT:
        assert words[-3:] == ["t.py", "--seed", "3"]
    assert told(read_options(parse_arguments(words)), command) == told(options, command)


def test_every_field_is_an_option_that_some_process_needs() -> None:
    needed = {path[0] for command in STARTED for path, _ in options_of(RunOptions, command)}
    assert {each.name for each in fields(RunOptions)} - needed == DERIVED


@pytest.mark.parametrize("command", [LOCAL, NODE])
def test_users_are_told_of_every_option_that_they_can_say(command: str) -> None:
    parser = command_line().parsers()[1][command]
    for _, option in options_of(RunOptions, command):
        (action,) = (
            each
            for each in parser._actions  # pyright: ignore[reportPrivateUsage]
            if option.flag in each.option_strings
        )
        assert action.help not in (None, argparse.SUPPRESS) and "{" not in str(action.help)


@dataclass(frozen=True, slots=True)
class WithOneMore(RunOptions):
    """The options of a version in which there is one more."""

    patience: int = number(7, "N", "steps to wait (default: {default})", (LOCAL, COORDINATOR), at_least(1))


def test_a_new_option_needs_its_definition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("recycle_runtime.options.run", "recycle_runtime.cli.options.run"):
        monkeypatch.setattr(f"{module}.RunOptions", WithOneMore)
    assert "steps to wait (default: 7)" in command_line().parsers()[1][LOCAL].format_help()
    given: Any = read_options(parse_arguments(["local", "a.plan", "--patience", "9", "t.py"]))
    assert given.patience == 9
    words = command_words(replace(given, state="s"), COORDINATOR, "--listen", "h:1")
    received: Any = read_options(parse_arguments(words))
    assert received.patience == 9
    assert "--patience=9" not in command_words(given, AGENT)
    with pytest.raises(UsageError, match=r"^--patience must be at least 1, got 0$"):
        read_options(parse_arguments(["local", "a.plan", "--patience", "0", "t.py"]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replan", "7%"], "--replan must be a percentage between 0 and 100, or off, got '7%'"),
        (["--mtbf", "inf"], "--mtbf must be a number of seconds above 0, got inf"),
        (["--stop-timeout", "nan"], "--stop-timeout must be a number of seconds, got nan"),
        (["--node-timeout", "0.5"], "--node-timeout must be at least 1 s, got 0.5"),
        (["--neighbour-copies", "0"], "--neighbour-copies must be at least 1, got 0"),
        (["--check-peers", "-1"], "--check-peers must be from 0 to 9223372036854775807, got -1"),
        (["--debug", "me"], "--debug: a worker must be like 0:2 (pipeline:stage, from 0), got 'me'"),
        (["--resume"], "--resume needs --checkpoint DIR, the folder of the checkpoints"),
        (["--checkpoint-every", "100"], "--checkpoint-every needs --checkpoint DIR, the folder of the"),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_sentence(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_options(parse_arguments(["local", "a.plan", *words, "t.py"]))
    assert str(caught.value).startswith(said)


def test_a_debugger_has_time() -> None:
    options = read_options(parse_arguments(["local", "a.plan", "--debug", "0:0", "t.py"])).with_time()
    day = 86400.0
    assert min(options.heartbeat_timeout, options.instruction_timeout, options.node_timeout) > day
    assert RunOptions("a.plan").with_time() == RunOptions("a.plan")
