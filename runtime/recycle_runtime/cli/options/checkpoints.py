"""Options: where checkpoints are kept, how often one is taken, whether to resume from one."""

from argparse import Namespace

from recycle_runtime.cli.output import UsageError
from recycle_runtime.cli.parser import Arguments

_EVERY = 100
STOP = 60.0
RESUMES = 3


def add_checkpoint_arguments(parser: Arguments) -> None:
    """A folder, an interval, and whether to resume."""
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="save checkpoints in this folder, which all nodes share"
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help=f"steps between two checkpoints (default: {_EVERY})",
    )
    parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint")
    parser.add_argument(
        "--max-resumes",
        type=int,
        default=RESUMES,
        metavar="N",
        help="how often the job resumes by itself, from copies in memory or its newest checkpoint, after "
        f"every worker of a stage has failed (default: {RESUMES}; 0: it ends)",
    )
    parser.add_argument(
        "--stop-timeout",
        type=float,
        default=STOP,
        metavar="SECONDS",
        help="how long a last checkpoint may take after SIGTERM, SIGHUP or ctrl-C; a second signal ends "
        f"the job at once (default: {STOP:g})",
    )


def add_copies_argument(parser: Arguments) -> None:
    parser.add_argument(
        "--neighbour-copies",
        type=int,
        metavar="K",
        help="every K steps, copy the state of every stage in the background into the memory of its node and "
        "of a node of another stage's worker, if there is another node: when every worker of a stage fails, "
        "the job goes on from there instead of from a checkpoint, up to --max-resumes times (default: no "
        "copies)",
    )


def neighbour_copies(arguments: Namespace) -> int:
    """Steps from one copy in memory to the next; 0: none."""
    every: int | None = arguments.neighbour_copies
    if every is not None and every < 1:
        raise UsageError(f"--neighbour-copies must be at least 1, got {every}")
    return every or 0


def add_changes_argument(parser: Arguments) -> None:
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="resume although the source of the program, the length of its data, the seed or the number of "
        "micro-batches in a step has changed since the checkpoint was made",
    )


def checkpoint_every(arguments: Namespace) -> int:
    """Steps from one checkpoint to the next; UsageError when something cannot be meant."""
    every: int | None = arguments.checkpoint_every
    if not arguments.stop_timeout >= 0:
        raise UsageError(f"--stop-timeout must be a number of seconds, got {arguments.stop_timeout:g}")
    if arguments.max_resumes < 0:
        raise UsageError(f"--max-resumes must be at least 0, got {arguments.max_resumes}")
    if arguments.checkpoint is None:
        for name, is_given in (("--checkpoint-every", every is not None), ("--resume", arguments.resume)):
            if is_given:
                raise UsageError(f"{name} needs --checkpoint DIR, the folder of the checkpoints")
        return _EVERY
    if every is not None and every < 1:
        raise UsageError(f"--checkpoint-every must be at least 1, got {every}")
    return _EVERY if every is None else every
