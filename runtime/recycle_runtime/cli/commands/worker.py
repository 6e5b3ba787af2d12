"""`recycle-run worker`: one worker, as a cluster launcher starts it."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from recycle_runtime import logs
from recycle_runtime.cli.options.addresses import add_address_argument, address
from recycle_runtime.cli.options.run import add_options, add_plan_argument, read_options
from recycle_runtime.cli.options.training import check_device, check_files, worker_named
from recycle_runtime.cli.output import DONE, NO_PLAN, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.options.run import WORKER, extended
from recycle_runtime.plan.plan_choice import NoFittingPlanError, choose_plan

_TIMEOUT = 1800.0


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_options(parser, WORKER)
    add_address_argument(parser, "--store", "a torch.distributed.TCPStore that some process serves")
    parser.add_argument("--worker", required=True, metavar="P:S", help="which worker this is, pipeline:stage")
    parser.add_argument(
        "--tp-rank",
        type=int,
        default=0,
        metavar="N",
        help="which of the worker's tensor-parallel ranks this is (default: 0)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT,
        metavar="SECONDS",
        help=f"how long to wait for the other workers, in their first step too (default: {_TIMEOUT:g})",
    )


def run(arguments: Namespace, output: Output) -> int:
    given = read_options(arguments)
    check_files(given)
    place = worker_named("--worker", arguments.worker)
    host, port = address("--store", arguments.store)
    if not arguments.timeout > 0:
        raise UsageError(f"--timeout must be a number of seconds above 0, got {arguments.timeout:g}")
    logs.note(worker=arguments.worker)
    # Loading torch takes seconds, so it waits until the arguments are known to make sense.
    import torch.distributed as dist

    from recycle_runtime.execution.interpreter import StreamError
    from recycle_runtime.plan.bundle import Bundle
    from recycle_runtime.program.loading import ProgramError
    from recycle_runtime.worker.fixed_plan import FixedPlanWorker
    from recycle_runtime.worker.options import WorkerOptions

    check_device(given.device)
    bundle = Bundle.read(given.bundle)
    try:
        choice = choose_plan(bundle, given.failed)
    except NoFittingPlanError as error:
        raise UserError(str(error), NO_PLAN) from None
    if place not in choice.roles:
        raise UsageError(f"worker {arguments.worker} is among the failed ones or does not exist")
    if not 0 <= arguments.tp_rank < bundle.tensor:
        raise UsageError(f"--tp-rank must be from 0 to {bundle.tensor - 1}, got {arguments.tp_rank}")
    options = extended(
        WorkerOptions,
        given,
        bundle=str(Path(given.bundle).absolute()),
        plan=choice.plan,
        worker=choice.roles[place],
        tp_rank=arguments.tp_rank,
        timeout=arguments.timeout,
    )
    try:
        store: Any = dist.TCPStore(host, port, is_master=False)
        worker = FixedPlanWorker(options, store)
        worker.train(lambda report: output.line(json.dumps(report._asdict())))
        worker.transport.barrier()
    except (ProgramError, StreamError) as error:
        raise UserError(str(error)) from None
    except RuntimeError as error:
        raise UserError(f"worker {arguments.worker}: {error}") from None
    return DONE
