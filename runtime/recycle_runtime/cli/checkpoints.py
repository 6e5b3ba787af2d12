"""Options: where checkpoints are kept, how often, whether to go on from one. Standard library only."""

import argparse

from recycle_runtime.cli.errors import Refused

_EVERY = 100


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="keep checkpoints in this folder, which all nodes share"
    )
    parser.add_argument(
        "--checkpoint-every", type=int, metavar="N", help=f"steps from one to the next (default: {_EVERY})"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest of them")


def check_checkpoint_arguments(arguments: argparse.Namespace) -> int:
    """Steps from one checkpoint to the next; Refused when something cannot be meant."""
    if arguments.checkpoint is None:
        for name, is_given in (
            ("--checkpoint-every", arguments.checkpoint_every is not None),
            ("--resume", arguments.resume),
        ):
            if is_given:
                raise Refused(f"{name} needs --checkpoint DIR, the folder of the checkpoints")
        return _EVERY
    if arguments.checkpoint_every is not None and arguments.checkpoint_every < 1:
        raise Refused(f"--checkpoint-every must be at least 1, got {arguments.checkpoint_every}")
    return _EVERY if arguments.checkpoint_every is None else arguments.checkpoint_every
