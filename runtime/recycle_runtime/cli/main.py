"""`recycle-run`: trains with the plans of a bundle, and shows what is in it."""

import argparse
import sys
from collections.abc import Sequence

from recycle_runtime.cli.commands import agent, coordinator, local, profile, streams, worker
from recycle_runtime.cli.errors import INPUT_ERROR, Refused
from recycle_runtime.cli.standard_streams import abandon, open_standard_streams
from recycle_runtime.plan.bundle import BundleError

_COMMANDS = (local, worker, coordinator, agent, profile, streams)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is that of `recyclec`."""
    open_standard_streams()
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BundleError as error:
        return _say(f"{arguments.bundle}: {error}", INPUT_ERROR)
    except Refused as error:
        return _say(str(error), error.code)
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        abandon(sys.stdout)
        return 141
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        if error.filename:
            return _say(f"{error.filename}: {why}", INPUT_ERROR)
        # Only what we write to has no name.
        abandon(sys.stdout)
        return _say(f"cannot write stdout: {why}", INPUT_ERROR)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="recycle-run", description="Trains with the plans of a bundle, and shows what is in it."
    )
    parser.add_argument("--version", action="version", version=f"recycle-run {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def _version() -> str:
    # The runtime ships in the same package as the compiler, whose version it shares, but must not import it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("recyclec")
    except PackageNotFoundError:
        return "from a checkout that is not installed"


def _say(sentence: str, code: int) -> int:
    try:
        print(f"recycle-run: error: {sentence}", file=sys.stderr)
    except OSError:
        abandon(sys.stderr)
    return code
