"""`recycle-run local`: all workers of a plan on this machine."""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from recycle_runtime.cli.adapting import adaptation, add_adaptation_arguments
from recycle_runtime.cli.checkpoints import add_checkpoint_arguments, check_checkpoint_arguments
from recycle_runtime.cli.errors import DONE, INPUT_ERROR, NO_PLAN, Refused
from recycle_runtime.cli.injected_faults import add_disturbance_arguments, disturbances
from recycle_runtime.cli.parsers import Parsers
from recycle_runtime.cli.training import add_training_arguments, check_device, check_training_arguments
from recycle_runtime.launcher.live_view import event_of, summary, view
from recycle_runtime.launcher.local import RunError, RunOptions, check_beginning, check_failed, run_local
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.chrome_trace import chrome_trace
from recycle_runtime.plan.plan_choice import NoPlanError
from recycle_runtime.protocol.framing import Message


def add_parser(commands: Parsers) -> None:
    does = "train with every worker of a plan on this machine"
    parser = commands.add_parser("local", help=does, description=f"{does.capitalize()}.")
    add_training_arguments(parser)
    add_checkpoint_arguments(parser)
    add_adaptation_arguments(parser)
    add_disturbance_arguments(parser)
    parser.add_argument("--metrics", metavar="FILE", help="write a JSON object for every step")
    parser.add_argument(
        "--trace", metavar="FILE", help="write what ran when, for chrome://tracing or Perfetto"
    )
    parser.add_argument("--save", metavar="DIR", help="write the parameters of every worker at the end")
    parser.add_argument("--quiet", action="store_true", help="nothing but the last lines")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    failed = check_training_arguments(arguments)
    every = check_checkpoint_arguments(arguments)
    bundle = Bundle.read(arguments.bundle)
    faults, returns = disturbances(arguments, bundle, failed)
    if arguments.save is not None:
        Path(arguments.save).mkdir(parents=True, exist_ok=True)
    if arguments.device != "cpu":
        check_device(arguments.device)
    options = RunOptions(
        bundle=arguments.bundle,
        program=arguments.program,
        steps=arguments.steps,
        failed=failed,
        seed=arguments.seed,
        device=arguments.device,
        trace=arguments.trace is not None,
        save=arguments.save,
        faults=faults,
        returns=returns,
        checkpoint=arguments.checkpoint,
        every=every,
        resume=arguments.resume,
        adaptation=adaptation(arguments),
    )
    show = view(bundle.stages, bundle.pipelines, arguments.quiet)
    try:
        check_failed(bundle, failed)
        check_beginning(bundle, options)
        with ExitStack() as stack:
            # Both files are opened before the first step, so that no training is lost for a wrong name.
            trace = stack.enter_context(open(arguments.trace, "w")) if arguments.trace else None
            metrics = stack.enter_context(open(arguments.metrics, "w")) if arguments.metrics else None
            record = _Metrics(metrics)

            def take(message: Message) -> None:
                record.take(message)
                show(message)

            result = run_local(options, take)
            if trace is not None:
                about: dict[str, Any] = {"plan": arguments.bundle, "failed": [f"{p}:{s}" for p, s in failed]}
                trace.write(chrome_trace(result.events, about))
    except NoPlanError as error:
        raise Refused(str(error), NO_PLAN) from None
    except RunError as error:
        raise Refused(str(error), INPUT_ERROR) from None
    if words := summary(
        result.recoveries, [step.step for step in result.steps], arguments.steps, *result.begins
    ):
        print(words)
    last = result.steps[-1]
    print(f"{len(result.steps)} steps, {last.live} workers, plan {last.plan}, last loss {last.loss:.6f}")
    return DONE


class _Metrics:
    """A JSON object a line: every step, with what happened before it."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._events: list[str] = []

    def take(self, message: Message) -> None:
        if self._file is None:
            return
        if message["type"] != "row":
            if (words := event_of(message)) is not None:
                self._events.append(words)
            return
        row = {
            "step": message["step"],
            "loss": message["loss"],
            "seconds": round(message["seconds"], 6),
            "live": message["live"],
            "plan": message["plan"],
            "event": "; ".join(self._events) or None,
        }
        self._events.clear()
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
