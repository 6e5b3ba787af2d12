"""A script and its arguments at the end of a command line, as `python` and `torchrun` take them.

    recycle-run local PLAN --device cuda train.py --my-arg 3
                      own options        script   what belongs to the script

argparse would take `--my-arg` for an option of the command. So the words are parted before it sees them: the
script is the second that is neither an option nor the value of one. An option of the command behind it
belongs to the script all the same, as with `torchrun`; a note says so unless the script knows that option.
"""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recycle_runtime.cli.output import Output, UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.plan.bundle import MAGIC


def add_script_arguments(parser: Arguments, before: int = 1) -> None:
    """The script to run in place of a program. `before` are the arguments before it that are no options."""
    group: Any = parser
    group.split = partial(split_script, before=before)
    parser.add_argument(
        "script",
        nargs="?",
        metavar="SCRIPT [ARGS...]",
        help="your training script, which every worker runs; what follows its name belongs to it",
    )


def check_script(arguments: Namespace) -> tuple[str, ...]:
    """The script and its arguments, nothing if there is a program; UsageError unless there is one of both."""
    script = script_or_program(arguments)
    name = script[0] if script else arguments.program
    with Path(name).open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            wanted = "a script to run, after all options, or --program FILE"
            raise UsageError(f"{name} is a plan, and stands where the program should: give {wanted}")
    return script


def script_or_program(arguments: Namespace) -> tuple[str, ...]:
    """The same, where the files are on other machines."""
    script: tuple[str, ...] = tuple(arguments.script_words)
    if bool(script) == (arguments.program is not None):
        raise UsageError("give either a script to run, after all options, or --program FILE")
    return script


def note_options_of_script(arguments: Namespace, output: Output) -> None:
    """Say which options of the command stand behind the script, if it does not look as if it had them."""
    name, *words = arguments.script_words or [""]
    try:
        text = Path(name).read_text(encoding="utf-8", errors="replace") if name else ""
    except OSError:
        text = ""
    given = [word.partition("=")[0] for word in words if word.startswith("-")]
    found = [each for each in dict.fromkeys(given) if each in arguments.own_options and each not in text]
    if found:
        output.say(
            f"note: {', '.join(found)} after {name} {'go' if len(found) > 1 else 'goes'} to the script; "
            f"options of {output.program} {arguments.command} come before it"
        )


def split_script(
    parser: argparse.ArgumentParser, words: Sequence[str], before: int = 1
) -> tuple[list[str], list[str]]:
    """The words of the command, and those of the script."""
    positionals = 0
    position = 0
    while position < len(words):
        word = words[position]
        if word == "--":
            position += 1
        elif word.startswith("-") and word != "-":
            position += 1 + _values(parser, word, words[position + 1 : position + 2])
        elif positionals == before:
            return list(words[:position]), list(words[position:])
        else:
            positionals += 1
            position += 1
    return list(words), []


def _values(parser: argparse.ArgumentParser, word: str, following: Sequence[str]) -> int:
    """Number of words that an option takes after its own; options may be abbreviated.

    An option whose value may be left out takes a port or an address, and no name of a file.
    """
    name, equals, _ = word.partition("=")
    if equals:
        return 0
    known: dict[str, argparse.Action] = parser._option_string_actions  # pyright: ignore[reportPrivateUsage]
    found = known.get(name) or next((known[each] for each in known if each.startswith(name)), None)
    if found is not None and found.nargs == "?":
        return sum(each.rpartition(":")[2].isdigit() for each in following)
    return 0 if found is None or found.nargs == 0 else 1
