"""`recycle-run streams`: what a bundle holds for each worker. Standard library only."""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator

from recycle_runtime.cli.options.run import add_plan_argument
from recycle_runtime.cli.output import DONE, Output, UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.plan.assembly import Worker, disassemble
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import layout_of_plan
from recycle_runtime.plan.plan_choice import parse_workers
from recycle_runtime.plan.worker_ids import worker_text

_OWN, _FASTEST = "own", "fastest"
_DIGITS = 9
"""No cut has a number of so many."""


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    parser.add_argument("--failures", type=int, metavar="N", help="the plan for this many failures")
    parser.add_argument(
        "--cut",
        type=_cut_argument,
        metavar="own|fastest|N",
        help="of a job in layers, how its layers are cut into stages: as the job says, as the fastest plan "
        f"for so many workers has it, or the Nth other cut of the bundle (default: {_OWN})",
    )
    parser.add_argument(
        "--worker",
        metavar="P:S",
        help="one worker, pipeline:stage; under another cut, rank:stage of its layout",
    )


def run(arguments: Namespace, output: Output) -> int:
    bundle = Bundle.read(arguments.bundle)
    if arguments.failures is None and arguments.worker is None and arguments.cut is None:
        output.data("".join(f"{line}\n" for line in _plans(bundle)))
        return DONE
    bundle, plan = _picked(bundle, arguments.bundle, arguments.cut or _OWN, arguments.failures)
    if arguments.worker is None:
        for worker in bundle.workers(plan):
            output.data(f"worker {worker_text(worker)}  {bundle.length(plan, worker)} instructions\n")
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
        failed = " ".join(map(worker_text, plan.failed)) or "none"
        live = len(bundle.workers(number))
        yield f"plan {number}  {len(plan.failed)} failed ({failed}), {live} workers live"
    for cut, recut in enumerate(bundle.recuts):
        for number, _ in enumerate(recut.plans):
            yield f"cut {cut}, plan {number}  {_placed(recut, number, bundle.split(recut))}"


def _is_of_a_layout(bundle: Bundle) -> bool:
    """True if stages have as many workers as a layout gives them: other cells are not there, none failed.

    The job of such a bundle has stages alone, and not the layers that others are cut from.
    """
    has_layout = bool(bundle.groups) or len(bundle.cut) == bundle.stages
    return has_layout and not any(line.startswith("layer_") for line in bundle.job_text.splitlines())


def _placed(bundle: Bundle, plan: int, split: int = 1) -> str:
    live = len(bundle.workers(plan))
    return f"{live} worker{'s' if live > 1 else ''} as {layout_of_plan(bundle, plan, split)}"


def _cut_argument(word: str) -> str:
    if word in (_OWN, _FASTEST) or (word.isascii() and word.isdigit() and len(word) < _DIGITS):
        return word
    raise ArgumentTypeError(f"must be own, fastest, or the number of a cut, got {word}")


def _picked(bundle: Bundle, path: str, cut: str, failures: int | None) -> tuple[Bundle, int]:
    """The plans under this cut, and which of them is for so many failures."""
    if cut not in (_OWN, _FASTEST):
        return _under(bundle, path, int(cut), failures)
    plan = _plan_for(bundle, failures or 0)
    if cut == _FASTEST:
        number = bundle.fastest_recut(len(bundle.workers(plan)), groups=True)
        if number is not None and bundle.recuts[number].plans[0].period < bundle.plans[plan].period:
            return bundle.recuts[number], 0
    return bundle, plan


def _under(bundle: Bundle, path: str, number: int, failures: int | None) -> tuple[Bundle, int]:
    """With one worker fewer than the cut is for, its plan that covers that."""
    if number >= len(bundle.recuts):
        held = f"cuts 0 to {len(bundle.recuts) - 1}" if bundle.recuts else "no plans under other cuts"
        raise UsageError(f"no cut {number}: {path} has {held}")
    recut = bundle.recuts[number]
    needed = len(recut.workers(0))
    live = needed if failures is None else bundle.present - failures
    if live >= needed:
        return recut, 0
    if live == needed - 1 and len(recut.plans) > 1:
        return recut, 1
    raise UsageError(
        f"no plan for {failures} failures under cut {number}: it is for {needed} workers, and {max(0, live)} "
        "are left"
    )


def _plan_for(bundle: Bundle, failures: int) -> int:
    counts = [len(plan.failed) - len(bundle.vacant) for plan in bundle.plans]
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
