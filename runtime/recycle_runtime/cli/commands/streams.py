"""`recycle-run streams`: what a bundle holds for each worker. Standard library only."""

import argparse
import sys

from recycle_runtime.cli.errors import DONE, Refused
from recycle_runtime.cli.parsers import Parsers
from recycle_runtime.plan.assembly import Worker, disassemble
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_choice import parse_workers


def add_parser(commands: Parsers) -> None:
    does = "list the plans of a bundle, the workers of a plan, or the instructions of a worker"
    parser = commands.add_parser("streams", help=does, description=f"{does.capitalize()}.")
    parser.add_argument("bundle", metavar="PLAN")
    parser.add_argument("--failures", type=int, metavar="N", help="the plan for this many failures")
    parser.add_argument("--worker", metavar="P:S", help="one worker, pipeline:stage")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle.read(arguments.bundle)
    if arguments.failures is None and arguments.worker is None:
        _list_plans(bundle)
        return DONE
    plan = _plan_for(bundle, arguments.failures or 0)
    if arguments.worker is None:
        for worker in bundle.workers(plan):
            print(f"worker {_name(worker)}  {bundle.encoded(plan, worker)[1]} instructions")
        return DONE
    worker = _worker(arguments.worker)
    if worker not in bundle.workers(plan):
        raise Refused(f"worker {arguments.worker} has no stream in this plan: it failed or does not exist")
    sys.stdout.write(disassemble(bundle.stream(plan, worker), worker))
    return DONE


def _list_plans(bundle: Bundle) -> None:
    for number, plan in enumerate(bundle.plans):
        failed = " ".join(map(_name, plan.failed)) or "nobody"
        print(
            f"plan {number}  {len(plan.failed)} failed ({failed}), {len(bundle.workers(number))} workers live"
        )


def _plan_for(bundle: Bundle, failures: int) -> int:
    counts = [len(plan.failed) for plan in bundle.plans]
    if failures not in counts:
        raise Refused(f"no plan for {failures} failures: the bundle plans for {', '.join(map(str, counts))}")
    return counts.index(failures)


def _worker(word: str) -> Worker:
    try:
        (worker,) = parse_workers([word])
    except ValueError:
        raise Refused(f"--worker must be like 0:2 (pipeline:stage, from 0), got {word!r}") from None
    return worker


def _name(worker: Worker) -> str:
    return f"{worker[0]}:{worker[1]}"
