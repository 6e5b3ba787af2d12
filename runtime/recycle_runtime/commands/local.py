"""`recycle-run local`: all workers of a plan on this machine."""

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TextIO

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.commands.errors import DONE, INPUT_ERROR, NO_PLAN, Refused
from recycle_runtime.commands.parsers import Parsers
from recycle_runtime.commands.training import add_training_arguments, check_device, check_training_arguments
from recycle_runtime.plan_choice import MissingPlanError, NoPlanError, choose_plan
from recycle_runtime.plan_on_demand import plan_on_demand

if TYPE_CHECKING:
    from recycle_runtime.local import Step


def add_parser(commands: Parsers) -> None:
    does = "train with every worker of a plan on this machine"
    parser = commands.add_parser("local", help=does, description=f"{does.capitalize()}.")
    add_training_arguments(parser)
    parser.add_argument("--metrics", metavar="FILE", help="write a JSON object for every step")
    parser.add_argument(
        "--trace", metavar="FILE", help="write what ran when, for chrome://tracing or Perfetto"
    )
    parser.add_argument("--save", metavar="DIR", help="write the parameters of every worker at the end")
    parser.add_argument("--quiet", action="store_true", help="no line for every step")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    failed = check_training_arguments(arguments)
    if arguments.save is not None:
        Path(arguments.save).mkdir(parents=True, exist_ok=True)
    # Loading torch takes seconds, so it waits until the arguments are known to make sense.
    from recycle_runtime.chrome_trace import chrome_trace
    from recycle_runtime.local import RunError, RunOptions, run_local
    from recycle_runtime.program import ProgramError, load_program

    options = RunOptions(
        bundle=arguments.bundle,
        program=arguments.program,
        steps=arguments.steps,
        failed=failed,
        seed=arguments.seed,
        device=arguments.device,
        trace=arguments.trace is not None,
        save=arguments.save,
    )
    check_device(arguments.device)
    try:
        load_program(arguments.program)
        with ExitStack() as stack:
            # Both files are opened before the first step, so that no training is lost for a wrong name.
            trace = stack.enter_context(open(arguments.trace, "w")) if arguments.trace else None
            options = replace(options, bundle=_with_plan(arguments.bundle, failed, stack))
            metrics = stack.enter_context(open(arguments.metrics, "w")) if arguments.metrics else None
            result = run_local(options, lambda step: _tell(step, metrics, arguments.quiet))
            if trace is not None:
                trace.write(chrome_trace(result.events))
    except ProgramError as error:
        raise Refused(str(error), INPUT_ERROR) from None
    except NoPlanError as error:
        raise Refused(str(error), NO_PLAN) from None
    except RunError as error:
        raise Refused(str(error), INPUT_ERROR) from None
    last = result.steps[-1]
    print(f"{len(result.steps)} steps, {last.live} workers, plan {last.plan}, last loss {last.loss:.6f}")
    return DONE


def _with_plan(name: str, failed: tuple[Worker, ...], stack: ExitStack) -> str:
    """The bundle, or one made now if it has no plan for these failures."""
    bundle = Bundle.read(name)
    try:
        choose_plan(bundle, failed)
    except MissingPlanError:
        path = Path(stack.enter_context(TemporaryDirectory())) / "on-demand.plan"
        plan_on_demand(bundle, failed, path)
        return str(path)
    return name


def _tell(step: "Step", metrics: TextIO | None, quiet: bool) -> None:
    if metrics is not None:
        row = {
            "step": step.step,
            "loss": step.loss,
            "seconds": round(step.seconds, 6),
            "live": step.live,
            "plan": step.plan,
            "event": None,
        }
        metrics.write(json.dumps(row) + "\n")
        metrics.flush()
    if not quiet:
        print(f"step {step.step:5}  loss {step.loss:.6f}  {step.seconds:.3f} s", file=sys.stderr)
