"""What the commands that train have in common: their arguments, and checks made before torch is loaded."""

import argparse
from pathlib import Path

from recycle_runtime.cli.errors import Refused
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_choice import parse_workers

_LARGEST = (1 << 63) - 1


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """A plan, a program, and how to run it."""
    parser.add_argument("bundle", metavar="PLAN")
    parser.add_argument(
        "--program", required=True, metavar="FILE", help="the Python file that says what to train"
    )
    parser.add_argument("--steps", required=True, type=int, metavar="N", help="how many steps to train")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--failed", action="append", default=[], metavar="P:S,P:S", help="workers that are not there"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of parameters, data and dropout")


def check_training_arguments(arguments: argparse.Namespace) -> tuple[Worker, ...]:
    """The failed workers; Refused or OSError when something cannot be meant."""
    for name, value, least in (("--steps", arguments.steps, 1), ("--seed", arguments.seed, 0)):
        if not least <= value <= _LARGEST:
            raise Refused(f"{name} must be from {least} to {_LARGEST}, got {value}")
    for name in (arguments.bundle, arguments.program):
        Path(name).open("rb").close()
    return workers_named("--failed", arguments.failed) if arguments.failed else ()


def workers_named(option: str, words: list[str]) -> tuple[Worker, ...]:
    """Workers as the user wrote them after an option."""
    try:
        return parse_workers(words)
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None


def check_device(name: str) -> None:
    """Refused where the device is not there; loads torch."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise Refused("--device cuda: torch finds no GPU here")
