"""Completion of a program's commands and options, as a script for bash, zsh or fish."""

from collections.abc import Callable, Mapping, Sequence

from recycle_runtime.cli.description import Command, OptionDescription, described
from recycle_runtime.cli.output import DONE, Output
from recycle_runtime.cli.parser import Arguments, CommandLine

Script = Callable[[str, Sequence[Command]], str]

_HOW = {
    "bash": 'eval "$({program} completion bash)"         in ~/.bashrc',
    "zsh": 'eval "$({program} completion zsh)"          in ~/.zshrc, after compinit',
    "fish": "{program} completion fish | source          in ~/.config/fish/config.fish",
}


def completion(shell: str, program: str, commands: Sequence[Command]) -> str:
    """The script; `commands` begins with the program itself."""
    return f"# {_HOW[shell].format(program=program)}\n{_SCRIPTS[shell](program, commands)}"


def _bash(program: str, commands: Sequence[Command]) -> str:
    function = f"_{program.replace('-', '_')}"
    names = [command.name for command in commands if command.name]
    values = [
        f"        {command.name}:{name}) {_bash_proposal(option.words)}return ;;"
        for command in commands
        for option in command.named
        for name in option.names
        if option.value
    ]
    following = [
        f"        '{command.name}') options={_quoted(_names(command))} words={_quoted(_values(command))} ;;"
        for command in commands
    ]
    return "\n".join(
        (
            f"{function}() {{",
            '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD - 1]}"',
            '    local command="" each options words',
            "    COMPREPLY=()",
            '    for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
            f"        case $each in {'|'.join(names)}) command=$each; break ;; esac",
            "    done",
            "    # Where nothing is proposed, the shell proposes files.",
            '    case "$command:$before" in',
            *values,
            "    esac",
            '    case "$command" in',
            *following,
            "    esac",
            f"    [[ -n $command ]] || words={_quoted(names)}",
            '    [[ $word == -* ]] && words="$options"',
            '    COMPREPLY=($(compgen -W "$words" -- "$word"))',
            "}",
            f"complete -o bashdefault -o default -F {function} {program}",
            "",
        )
    )


def _bash_proposal(words: Sequence[str]) -> str:
    return f'COMPREPLY=($(compgen -W {_quoted(words)} -- "$word")); ' if words else ""


def _names(command: Command) -> list[str]:
    return [name for option in command.named for name in option.names]


def _values(command: Command) -> list[str]:
    """Of arguments that stand alone, where they are not files."""
    return [word for option in command.alone for word in option.words]


def _quoted(words: Sequence[str]) -> str:
    return "'" + " ".join(words) + "'"


def _zsh(program: str, commands: Sequence[Command]) -> str:
    function = f"_{program.replace('-', '_')}"
    own, *others = commands
    lines = [
        f"{function}() {{",
        "    local context state line",
        "    typeset -A opt_args",
        "    _arguments -C \\",
        *(f"        {_zsh_spec(option)} \\" for option in own.named),
        "        '1: :->command' '*:: :->arguments'",
        "    case $state in",
        "    command)",
        f"        local -a commands=({' '.join(_zsh_text(f'{each.name}:{each.does}') for each in others)})",
        "        _describe command commands ;;",
        "    arguments)",
        "        case $words[1] in",
    ]
    for command in others:
        specs = [_zsh_spec(option) for option in command.named]
        specs += [
            _zsh_text(f"*:{_colons(option.value)}:{_zsh_values(option)}") for option in command.alone[:1]
        ]
        lines += [f"        {command.name}) _arguments {' '.join(specs)} ;;"]
    return "\n".join((*lines, "        esac ;;", "    esac", "}", f"compdef {function} {program}", ""))


def _zsh_spec(option: OptionDescription) -> str:
    does = option.does.replace("[", "(").replace("]", ")")
    value = f":{_colons(option.value)}:{_zsh_values(option)}" if option.value else ""
    return " ".join(_zsh_text(f"{name}[{_colons(does)}]{value}") for name in option.names)


def _zsh_values(option: OptionDescription) -> str:
    return f"({' '.join(option.words)})" if option.words else "_files"


def _colons(text: str) -> str:
    return text.replace(":", "\\:")


def _zsh_text(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(program: str, commands: Sequence[Command]) -> str:
    own, *others = commands
    lines = [f"complete -c {program} -n __fish_use_subcommand {_fish_option(option)}" for option in own.named]
    for command in others:
        does = _fish_text(command.does)
        lines.append(f"complete -c {program} -n __fish_use_subcommand -f -a {command.name} -d {does}")
        seen = f"complete -c {program} -n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"{seen} {_fish_option(option)}" for option in command.named]
        lines += [
            f"{seen} -f -a {_fish_text(' '.join(option.words))}" for option in command.alone if option.words
        ]
    return "\n".join((*lines, ""))


def _fish_option(option: OptionDescription) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.words:
        names.append(f"-x -a {_fish_text(' '.join(option.words))}")
    elif option.value:
        names.append("-r")
    return f"{' '.join(names)} -d {_fish_text(option.does)}"


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: Mapping[str, Script] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
SHELLS = tuple(_SCRIPTS)


def add_shell_argument(parser: Arguments) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="the shell to write it for")


def print_completion(program: CommandLine, shell: str, output: Output) -> int:
    """Print the completion script of a program: its command `completion`."""
    output.data(completion(shell, program.name, described(program)))
    return DONE
