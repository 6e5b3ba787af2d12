"""`recycle-run local`: all workers of a plan on this machine."""

import shlex
from argparse import Namespace
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from recycle_runtime.cli.options.faults import FAULT_NAMES, add_fault_arguments, injected_faults
from recycle_runtime.cli.options.run import add_options, add_plan_argument, read_options
from recycle_runtime.cli.options.script import add_script_arguments, check_script, note_options_of_script
from recycle_runtime.cli.options.training import check_device, check_files
from recycle_runtime.cli.options.watching import check_pages, watchers
from recycle_runtime.cli.output import DONE, INPUT_ERROR, NO_PLAN, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments, given_words
from recycle_runtime.cli.signals import StopRequests, interrupts_ignored, stop_requests
from recycle_runtime.files import naming
from recycle_runtime.launcher.live_view import loss_text, view, view_summary
from recycle_runtime.launcher.local import (
    RunError,
    RunResult,
    check_beginning,
    check_failed,
    run_local,
)
from recycle_runtime.options.run import LOCAL, RunOptions, WatchOptions
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.chrome_trace import chrome_trace
from recycle_runtime.plan.plan_choice import NoFittingPlanError
from recycle_runtime.protocol.messages.observers import Generation


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_script_arguments(parser)
    add_options(parser, LOCAL)
    add_fault_arguments(parser)
    parser.add_argument(
        "--trace", metavar="FILE", help="write when each op ran, for chrome://tracing or Perfetto"
    )


def run(arguments: Namespace, output: Output) -> int:
    options = read_options(arguments).with_time()
    check_files(options)
    script = check_script(arguments)
    if not script and options.steps is None:
        raise UsageError("--program needs --steps N, the number of steps to train")
    if script and options.steps is not None:
        raise UsageError(
            "--steps is for --program FILE: a script says with trainer.steps(n) how many it makes"
        )
    note_options_of_script(arguments, output)
    check_pages(options.watch)
    bundle = Bundle.read(options.bundle)
    faults, returns = injected_faults(arguments, options, bundle)
    if options.save is not None:
        Path(options.save).mkdir(parents=True, exist_ok=True)
    check_device(options.device, bundle.present * bundle.tensor)
    restarts_unsaid = not faults and options.debug is None
    options = replace(
        options,
        trace=arguments.trace is not None,
        faults=faults,
        returns=returns,
        restarts_workers=restarts_unsaid if arguments.restart_workers is None else options.restarts_workers,
        resume_with=f"`{_resume_command(arguments)}`",
    )
    show = view(bundle.stages, bundle.pipelines, output.quiet, in_lines=options.debug is not None)
    requests = StopRequests()
    try:
        check_failed(bundle, options.failed)
    except NoFittingPlanError as error:
        raise UsageError(f"--failed: {error}") from None
    try:
        check_beginning(bundle, options)
        with _signals(requests, options.debug), ExitStack() as stack:
            # Both files are opened before the first step, so that a wrong name costs no training.
            trace = stack.enter_context(open(arguments.trace, "w")) if arguments.trace else None
            watching = stack.enter_context(watchers(options, bundle, token_hex(), output, show))
            # The coordinator need not show what is shown here.
            result = run_local(replace(options, watch=WatchOptions()), watching.take, requests.why)
            if trace is not None:
                named = [f"{pipeline}:{stage}" for pipeline, stage in options.failed]
                about: dict[str, Any] = {"plan": options.bundle, "failed": named}
                about["generations"] = [_about_generation(each) for each in result.generations]
                with naming(arguments.trace):
                    trace.write(chrome_trace(result.events, about))
                    trace.close()
    except NoFittingPlanError as error:
        raise UserError(str(error), NO_PLAN) from None
    except RunError as error:
        signalled = requests.number
        raise UserError(str(error), INPUT_ERROR if signalled is None else 128 + signalled) from None
    _report(options, result, output)
    if (error := watching.metrics.error) is not None:
        output.error(error)
    return DONE if error is None else INPUT_ERROR


def _resume_command(arguments: Namespace) -> str:
    """Command line that resumes this run: all options that were given but injected faults, which could end it
    again."""
    resumed = Namespace(**vars(arguments) | dict.fromkeys(FAULT_NAMES) | {"resume": True})
    words = ["recycle-run", "local", arguments.bundle, *given_words(resumed), *arguments.script_words]
    return shlex.join(words)


@contextmanager
def _signals(requests: StopRequests, debug: str | None) -> Generator[None]:
    """With a debugger, the terminal tells all processes in the foreground of ctrl-C, and it is for that."""
    with nullcontext() if debug is None else interrupts_ignored(), stop_requests(requests):
        yield


def _report(options: RunOptions, result: RunResult, output: Output) -> None:
    """Print a summary of the run."""
    made = [step.step for step in result.steps]
    if words := view_summary(result.recoveries, made, *result.totals, *result.begins):
        output.data(f"{words}\n")
    if not made:
        output.data(f"{options.script[0]} has ended without a step\n")
        return
    last = result.steps[-1]
    loss = loss_text(last.loss)
    output.data(f"{len(made)} steps, {last.live} workers, plan {last.plan}, last loss {loss}\n")


def _about_generation(generation: Generation) -> dict[str, Any]:
    """From which step on which plan ran, and whose stream each worker had."""
    named = [f"{pipeline}:{stage}" for pipeline, stage in generation.workers]
    roles = [f"{pipeline}:{stage}" for pipeline, stage in generation.roles]
    return {"step": generation.step, "plan": generation.plan, "roles": dict(zip(named, roles, strict=False))}
