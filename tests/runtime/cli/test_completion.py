"""Completion knows every command and option, and the shells understand it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from recycle_compiler.cli.main import command_line as recyclec
from recycle_runtime.cli.completion import SHELLS, completion
from recycle_runtime.cli.description import described
from recycle_runtime.cli.main import command_line as recycle_run

PROGRAMS = [recyclec(), recycle_run()]


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.name)
def bash(request: pytest.FixtureRequest, tmp_path: Path) -> "Bash":
    program = request.param
    path = tmp_path / "completion.bash"
    path.write_text(completion("bash", program.name, described(program)))
    return Bash(program.name, path)


class Bash:
    """Asks bash what it would propose for the last word."""

    def __init__(self, program: str, script: Path) -> None:
        self.program, self.script = program, script

    def __call__(self, *words: str) -> list[str]:
        if shutil.which("bash") is None:
            pytest.skip("there is no bash on this machine")
        asked = (
            'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
            f'_{self.program.replace("-", "_")}; printf "%s\\n" "${{COMPREPLY[@]}}"'
        )
        run = ["bash", "--norc", "-c", asked, "bash", str(self.script), self.program, *words]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()


def test_commands_are_proposed(bash: Bash) -> None:
    (program,) = (each for each in PROGRAMS if each.name == bash.program)
    assert bash("") == list(program.commands)
    assert bash("completi") == ["completion"]


def test_options_of_the_command_are_proposed(bash: Bash) -> None:
    (program,) = (each for each in PROGRAMS if each.name == bash.program)
    for command in described(program)[1:]:
        names = [name for option in command.named for name in option.names]
        assert bash(command.name, "-") == names


def test_values_are_proposed_where_there_are_few(bash: Bash) -> None:
    assert bash("--log-level", "w") == ["warning"]
    assert bash("completion", "") == list(SHELLS)


def test_files_are_left_to_the_shell(bash: Bash) -> None:
    assert bash("--log-file", "") == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_understand_it(shell: str, program: object, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    line = next(each for each in PROGRAMS if each is program)
    path = tmp_path / f"completion.{shell}"
    path.write_text(completion(shell, line.name, described(line)))
    checked = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_every_shell_knows_every_option() -> None:
    for program in PROGRAMS:
        commands = described(program)
        for shell in SHELLS:
            script = completion(shell, program.name, commands)
            for command in commands:
                for option in command.named:
                    long = max(option.names, key=len)
                    assert (long.removeprefix("--") if shell == "fish" else long) in script
