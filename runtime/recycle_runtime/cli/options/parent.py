"""The option to end with the process that has started this one."""

import signal
from argparse import Namespace

from recycle_runtime.cli.parser import Arguments
from recycle_runtime.protocol.lifeline import is_held
from recycle_runtime.protocol.parent import end_with_parent


def add_parent_argument(parser: Arguments, also: str = "") -> None:
    parser.add_argument(
        "--end-with-parent",
        action="store_true",
        help=f"end as with SIGTERM when the process that has started this one ends, however it does{also}",
    )


def heed_parent(arguments: Namespace) -> None:
    """From now on, if it was asked for."""
    # Whoever holds a lifeline ends with its parent anyway.
    if arguments.end_with_parent and not is_held():
        end_with_parent(signal.SIGTERM)
