"""`recyclec`: arguments, exit codes, rendering of errors. No logic.

Nothing heavy is imported here, so that `--help` is instant; a command's module loads when it is run.
"""

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence

from recycle_compiler.cli.commands import COMMANDS
from recycle_compiler.version import __version__
from recycle_runtime import logs
from recycle_runtime.cli.output import BUG, INPUT_ERROR, INTERRUPTED, PIPE_CLOSED, Output
from recycle_runtime.cli.parser import CommandLine
from recycle_runtime.cli.signals import Stopped, stopping_on_signals
from recycle_runtime.cli.standard_streams import abandon, open_standard_streams
from recycle_runtime.files import sentence

_NAME = "recyclec"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it went."""
    open_standard_streams()
    arguments, output = Namespace(), Output(_NAME)
    try:
        with stopping_on_signals():
            arguments = parse_arguments(argv)
            color = not (arguments.no_color or os.environ.get("NO_COLOR"))
            output = Output(_NAME, quiet=arguments.quiet, color=color)
            logs.configure(arguments.log_level, arguments.log_file, quiet=arguments.quiet)
            code: int = arguments.run(arguments, output)
            output.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        abandon(sys.stdout)
        return PIPE_CLOSED
    except Stopped as stop:
        return _stopped("terminated", 128 + stop.number, output)
    except KeyboardInterrupt:
        return _stopped("interrupted", INTERRUPTED, output)
    except Exception as error:
        return _report(error, getattr(arguments, "jobs", 1), output)
    return code


def parse_arguments(argv: Sequence[str] | None) -> Namespace:
    """The command and its options; a usage error exits with 2."""
    return command_line().parse(argv)


def command_line() -> CommandLine:
    """The commands of this program."""
    return CommandLine(
        name=_NAME,
        description="Plan pipeline-parallel training that continues when workers fail.",
        version=__version__,
        package="recycle_compiler.cli.commands",
        commands=COMMANDS,
    )


def _stopped(how: str, code: int, output: Output) -> int:
    output.error(f"{how}, {_done(output)}")
    return code


def _done(output: Output) -> str:
    return f"wrote {', '.join(output.written)}" if output.written else "nothing was written"


def _too_small(what: str, processes: int, output: Output) -> int:
    """Neither the input nor a bug: this machine cannot run what was asked for."""
    output.error(f"{what}, {_done(output)}")
    fewer = f"plan with fewer processes than `--jobs {processes}`, or " if processes > 1 else ""
    output.words(f"\nhint: if memory ran out, {fewer}use a machine that has more\n")
    return BUG


def _report(error: Exception, processes: int, output: Output) -> int:
    """One sentence for the user's mistakes; everything else is ours and keeps its traceback."""
    from recycle_compiler.diagnostics import CompileError
    from recycle_compiler.planner.worker_processes import ProcessError

    if isinstance(error, CompileError):
        output.words(f"{error.render(color=output.colored(sys.stderr))}\n")
        return error.exit_code
    if isinstance(error, OSError):
        output.error(sentence(error))
        return INPUT_ERROR
    exit_code = getattr(error, "exit_code", None)
    if isinstance(exit_code, int):
        output.error(str(error))
        return exit_code
    if isinstance(error, MemoryError):
        return _too_small("there is not enough memory", processes, output)
    if isinstance(error, ProcessError) and not error.crashed:
        return _too_small(str(error), processes, output)
    output.words("".join(traceback.format_exception(error)))
    output.error("this is a bug in recyclec, not in your input; please report it with the lines above")
    _keep_reproducer(error, output)
    return BUG


def _keep_reproducer(error: Exception, output: Output) -> None:
    """A pass that crashed leaves what it was given, to be run again."""
    from recycle_compiler.passes.pipeline import PassError

    if isinstance(error, PassError):
        from recycle_compiler.passes.text import write_reproducer

        path = write_reproducer(error)
        output.error(f"please send {path} along; `recyclec reproduce {path}` crashes in the same way")
