"""`recycle-run`: arguments, exit codes, errors in one sentence. No logic."""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from recycle_runtime import logs
from recycle_runtime.cli.commands import COMMANDS
from recycle_runtime.cli.output import INPUT_ERROR, INTERRUPTED, PIPE_CLOSED, Output, UserError
from recycle_runtime.cli.parser import CommandLine
from recycle_runtime.cli.signals import Stopped, how, stopping_on_signals
from recycle_runtime.cli.standard_streams import abandon, open_standard_streams
from recycle_runtime.files import sentence
from recycle_runtime.plan.bundle import BundleError
from recycle_runtime.protocol.lifeline import hold_on

_NAME = "recycle-run"
_BROUGHT_BY = {"torch": "recyclec[runtime]", "msgspec": "recyclec"}
_LOGGER = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code says how it went, as that of `recyclec`."""
    open_standard_streams()
    hold_on()
    arguments, output = Namespace(), Output(_NAME)
    try:
        arguments = parse_arguments(argv)
        output = Output(
            _NAME, quiet=arguments.quiet, color=not (arguments.no_color or os.environ.get("NO_COLOR"))
        )
        logs.configure(arguments.log_level, arguments.log_file, quiet=arguments.quiet)
        with _first_process():
            _LOGGER.debug("process %d: starts as %s", os.getpid(), arguments.command)
            code: int = arguments.run(arguments, output)
            output.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        abandon(sys.stdout)
        return PIPE_CLOSED
    except Stopped as stop:
        return _fail(how(stop.number), 128 + stop.number, output)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED, output)
    except BundleError as error:
        return _fail(f"{arguments.bundle}: {error}", INPUT_ERROR, output)
    except UserError as error:
        return _fail(str(error), error.exit_code, output)
    except OSError as error:
        return _fail(sentence(error), INPUT_ERROR, output)
    except ModuleNotFoundError as error:
        if error.name not in _BROUGHT_BY:
            raise
        brings = f"pip install '{_BROUGHT_BY[error.name]}'"
        return _fail(
            f"this command needs {error.name}, which is not installed: {brings}", INPUT_ERROR, output
        )
    return code


def parse_arguments(argv: Sequence[str] | None) -> Namespace:
    """The command and its options; a usage error exits with 2."""
    return command_line().parse(argv)


def command_line() -> CommandLine:
    """The commands of this program."""
    return CommandLine(
        name=_NAME,
        description="Train with the plans of a bundle, and continue when workers fail.",
        version=_version(),
        package="recycle_runtime.cli.commands",
        commands=COMMANDS,
    )


def _version() -> str:
    # The runtime ships in the same package as the compiler, whose version it shares, but must not import it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("recyclec")
    except PackageNotFoundError:
        return "from a checkout that is not installed"


def _first_process() -> AbstractContextManager[None]:
    """The first process of a container hears only signals that it handles: it must not miss SIGTERM."""
    return stopping_on_signals() if os.getpid() == 1 else nullcontext()


def _fail(what: str, code: int, output: Output) -> int:
    output.error(what)
    return code
