"""`recycle-run worker`: one worker, as a cluster launcher starts it."""

import argparse
import json
from typing import Any

from recycle_runtime.cli.errors import DONE, INPUT_ERROR, NO_PLAN, Refused
from recycle_runtime.cli.parsers import Parsers
from recycle_runtime.cli.training import (
    add_training_arguments,
    check_device,
    check_training_arguments,
    workers_named,
)
from recycle_runtime.plan.plan_choice import NoPlanError, choose_plan


def add_parser(commands: Parsers) -> None:
    does = "run one worker of a plan; the others run elsewhere and meet it at the store"
    parser = commands.add_parser("worker", help=does, description=f"{does.capitalize()}.")
    add_training_arguments(parser)
    parser.add_argument(
        "--store", required=True, metavar="HOST:PORT", help="a TCPStore that some process serves"
    )
    parser.add_argument("--worker", required=True, metavar="P:S", help="which worker this is, pipeline:stage")
    parser.add_argument(
        "--tp-rank", type=int, default=0, metavar="N", help="which of its tensor-parallel processes"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    failed = check_training_arguments(arguments)
    place = workers_named("--worker", [arguments.worker])[0]
    host, _, port = arguments.store.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise Refused(f"--store must be like 10.0.0.1:29500, got {arguments.store!r}")
    # Loading torch takes seconds, so it waits until the arguments are known to make sense.
    import torch.distributed as dist

    from recycle_runtime.execution.interpreter import StreamError
    from recycle_runtime.plan.bundle import Bundle
    from recycle_runtime.program.loading import ProgramError
    from recycle_runtime.worker.static import TrainingWorker, WorkerOptions

    check_device(arguments.device)
    bundle = Bundle.read(arguments.bundle)
    try:
        choice = choose_plan(bundle, failed)
    except NoPlanError as error:
        raise Refused(str(error), NO_PLAN) from None
    if place not in choice.roles:
        raise Refused(f"worker {arguments.worker} is among the failed ones or does not exist")
    if not 0 <= arguments.tp_rank < bundle.tensor:
        raise Refused(f"--tp-rank must be from 0 to {bundle.tensor - 1}, got {arguments.tp_rank}")
    options = WorkerOptions(
        bundle=arguments.bundle,
        program=arguments.program,
        plan=choice.plan,
        worker=choice.roles[place],
        part=arguments.tp_rank,
        steps=arguments.steps,
        seed=arguments.seed,
        device=arguments.device,
        trace=False,
        timeout=600.0,
    )
    try:
        store: Any = dist.TCPStore(host, int(port), is_master=False)
        worker = TrainingWorker(options, store)
        worker.train(lambda report: print(json.dumps(report._asdict()), flush=True))
        worker.transport.barrier()
    except (ProgramError, StreamError) as error:
        raise Refused(str(error), INPUT_ERROR) from None
    except RuntimeError as error:
        raise Refused(f"worker {arguments.worker}: {error}", INPUT_ERROR) from None
    return DONE
