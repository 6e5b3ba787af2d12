"""`recycle-run streams`: what a bundle holds for each worker. Standard library only."""

from argparse import Namespace
from collections.abc import Iterator

from recycle_runtime.cli.options.training import add_plan_argument
from recycle_runtime.cli.output import DONE, Output, UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.plan.assembly import Worker, disassemble
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import layout_of
from recycle_runtime.plan.plan_choice import parse_workers


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    parser.add_argument("--failures", type=int, metavar="N", help="the plan for this many failures")
    parser.add_argument("--worker", metavar="P:S", help="one worker, pipeline:stage")


def run(arguments: Namespace, output: Output) -> int:
    bundle = Bundle.read(arguments.bundle)
    if arguments.failures is None and arguments.worker is None:
        output.data("".join(f"{line}\n" for line in _plans(bundle)))
        return DONE
    plan = _plan_for(bundle, arguments.failures or 0)
    if arguments.worker is None:
        for worker in bundle.workers(plan):
            output.data(f"worker {_name(worker)}  {bundle.length(plan, worker)} instructions\n")
        return DONE
    worker = _worker(arguments.worker)
    if worker not in bundle.workers(plan):
        raise UsageError(f"worker {arguments.worker} has no stream in this plan: it failed or does not exist")
    output.data(disassemble(bundle.stream(plan, worker), worker, bundle.pipelines))
    return DONE


def _plans(bundle: Bundle) -> Iterator[str]:
    for number, plan in enumerate(bundle.plans):
        if _is_of_a_layout(bundle):
            yield f"plan {number}  {_placed(bundle, number)}"
            continue
        failed = " ".join(map(_name, plan.failed)) or "none"
        live = len(bundle.workers(number))
        yield f"plan {number}  {len(plan.failed)} failed ({failed}), {live} workers live"
    for cut, recut in enumerate(bundle.recuts):
        for number, _ in enumerate(recut.plans):
            yield f"cut {cut}, plan {number}  {_placed(recut, number, bundle.split(recut))}"


def _is_of_a_layout(bundle: Bundle) -> bool:
    """Whether stages have as many workers as a layout gives them: other cells are not there, none failed.

    The job of such a bundle has stages alone, and not the layers that others are cut from.
    """
    has_layout = bool(bundle.groups) or len(bundle.cut) == bundle.stages
    return has_layout and not any(line.startswith("layer_") for line in bundle.job_text.splitlines())


def _placed(bundle: Bundle, plan: int, split: int = 1) -> str:
    live = len(bundle.workers(plan))
    return f"{live} worker{'s' if live > 1 else ''} as {layout_of(bundle, plan, split)}"


def _plan_for(bundle: Bundle, failures: int) -> int:
    counts = [len(plan.failed) for plan in bundle.plans]
    if failures not in counts:
        raise UsageError(
            f"no plan for {failures} failures: the bundle plans for {', '.join(map(str, counts))}"
        )
    return counts.index(failures)


def _worker(word: str) -> Worker:
    try:
        (worker,) = parse_workers([word])
    except ValueError:
        raise UsageError(f"--worker must be like 0:2 (pipeline:stage, from 0), got {word!r}") from None
    return worker


def _name(worker: Worker) -> str:
    return f"{worker[0]}:{worker[1]}"
