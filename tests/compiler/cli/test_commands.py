"""Both programs are built alike: a module per command, with its arguments, and words that the field knows."""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from recycle_compiler.cli import commands as compiler_commands
from recycle_compiler.cli import main as compiler
from recycle_runtime.cli import commands as runtime_commands
from recycle_runtime.cli import main as runtime

Main = Callable[[Sequence[str] | None], int]
PROGRAMS: tuple[tuple[Main, str, dict[str, str]], ...] = (
    (compiler.main, compiler_commands.__name__, compiler_commands.COMMANDS),
    (runtime.main, runtime_commands.__name__, runtime_commands.COMMANDS),
)
COMMANDS = [(main, package, name) for main, package, table in PROGRAMS for name in table]
HELPERS = {"diff_with_run"}
"""Modules that a command has for itself."""
RETIRED = re.compile(r"\b(loss|losses|lost|harm|slots|silent|beat|pulse|watches|part|parts|today's|us)\b")


@pytest.mark.parametrize(("package", "table"), [(package, table) for _, package, table in PROGRAMS])
def test_every_module_is_a_command(package: str, table: dict[str, str]) -> None:
    (folder,) = import_module(package).__path__
    modules = {path.stem for path in Path(folder).glob("*.py")} - {"__init__"} - HELPERS
    assert modules == set(table)


@pytest.mark.parametrize(("main", "package", "name"), COMMANDS)
def test_every_command_explains_itself(
    main: Main, package: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0
    for option in ("--quiet", "--no-color", "--log-level", "--log-file", "--version"):
        assert option in words
    assert RETIRED.findall(words) == []


@pytest.mark.parametrize(("main", "package", "name"), COMMANDS)
def test_every_option_has_a_help_text(main: Main, package: str, name: str) -> None:
    helps: list[tuple[str, object]] = []

    class Recorder:
        epilog: str | None = None

        def add_argument(self, *names: str, **options: object) -> None:
            helps.append((names[0], options.get("help")))

        def add_mutually_exclusive_group(self) -> "Recorder":
            return self

    import_module(f"{package}.{name}").add_arguments(Recorder())
    assert [option for option, words in helps if not words] == []
