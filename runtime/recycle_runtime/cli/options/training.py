"""Options: a plan, a program, a device and how to run it; most checks are made before torch is loaded."""

from argparse import Namespace
from pathlib import Path

from recycle_runtime.cli.output import UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.coordinator.peer_digests import CHECK_PEERS
from recycle_runtime.devices import DevicesError, WorkerDevices, worker_devices
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_choice import parse_workers

_LARGEST = (1 << 63) - 1


def add_plan_argument(parser: Arguments) -> None:
    """The bundle."""
    parser.add_argument("bundle", metavar="PLAN", help="a bundle, as `recyclec compile` writes it")


def add_program_arguments(parser: Arguments) -> None:
    """What to train, on which device, with which random numbers."""
    parser.add_argument(
        "--program", required=True, metavar="FILE", help="the Python file that defines what to train"
    )
    add_device_arguments(parser)


def add_device_arguments(parser: Arguments) -> None:
    """On which device, with which random numbers."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device to train on (default: cpu)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of parameters, data and dropout (default: 0)",
    )


def add_step_arguments(parser: Arguments, *, required: bool = True) -> None:
    """How long to train, and without which workers; a script may say how long itself."""
    how = "" if required else ", with --program; a script says so itself"
    parser.add_argument(
        "--steps", required=required, type=int, metavar="N", help=f"number of steps to train{how}"
    )
    parser.add_argument(
        "--failed",
        action="append",
        default=[],
        metavar="P:S,P:S",
        help="workers that have failed already, pipeline:stage",
    )


def add_peer_check_argument(parser: Arguments) -> None:
    """How often peers are compared."""
    parser.add_argument(
        "--check-peers",
        type=int,
        default=CHECK_PEERS,
        metavar="N",
        help="compare parameters, optimizer state and schedules of peers every N steps, and wherever all "
        f"workers stop; a difference ends the run (default: {CHECK_PEERS}; 0 compares nothing)",
    )


def checked_peers(arguments: Namespace) -> int:
    """Steps from one comparison of peers to the next; UsageError when that cannot be meant."""
    every: int = arguments.check_peers
    if not 0 <= every <= _LARGEST:
        raise UsageError(f"--check-peers must be from 0 to {_LARGEST}, got {every}")
    return every


def add_max_skipped_argument(parser: Arguments) -> None:
    """How many steps may be left out."""
    parser.add_argument(
        "--max-skipped",
        type=int,
        default=20,
        metavar="N",
        help="end the job after so many steps in a row that were skipped because a gradient is not finite "
        "(default: 20)",
    )


def max_skipped(arguments: Namespace) -> int:
    """UsageError when it cannot be meant."""
    if arguments.max_skipped < 1:
        raise UsageError(f"--max-skipped must be at least 1, got {arguments.max_skipped}")
    found: int = arguments.max_skipped
    return found


def check_training_arguments(arguments: Namespace) -> tuple[Worker, ...]:
    """The failed workers; UsageError or OSError when something cannot be meant."""
    for name, value, least in (("--steps", arguments.steps, 1), ("--seed", arguments.seed, 0)):
        if value is not None and not least <= value <= _LARGEST:
            raise UsageError(f"{name} must be from {least} to {_LARGEST}, got {value}")
    for name in (arguments.bundle, arguments.program):
        if name is not None:
            Path(name).open("rb").close()
    return workers_named("--failed", arguments.failed) if arguments.failed else ()


def workers_named(option: str, words: list[str]) -> tuple[Worker, ...]:
    """Workers as the user wrote them after an option."""
    try:
        return parse_workers(words)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def add_gpu_arguments(parser: Arguments) -> None:
    """Whether a GPU replays what it has done before, and what its memory holds."""
    parser.add_argument(
        "--undo",
        choices=("device", "host"),
        default="device",
        help="on a GPU, whose memory holds what undoes a step: the device's (12 bytes a parameter with AdamW "
        "in float32), or the host's (twice that, copied while the next step is computed)",
    )
    parser.add_argument(
        "--cuda-graphs",
        choices=("auto", "on", "off"),
        default="auto",
        help="on a GPU, capture the work on each buffer as CUDA graphs and replay it: where that can be "
        "(auto, the default), or else end with an error (on), or never (off)",
    )


def check_device(name: str, workers: int = 1) -> WorkerDevices | None:
    """Devices of so many worker processes on this node, None on CPU; UsageError where they are not there.

    It loads torch for a GPU, and does not start CUDA: processes that are forked from this one could not.
    """
    if name == "cpu":
        return None
    try:
        devices = worker_devices(workers)
    except DevicesError as error:
        raise UsageError(f"--device {name}: {error}") from None
    import torch

    if not torch.backends.cuda.is_built():
        raise UsageError(
            f"--device {name}: this torch ({torch.__version__}) is built for CPU\n"
            "hint: install a build of torch for CUDA"
        )
    return devices
