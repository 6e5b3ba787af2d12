"""`recycle-run local`: all workers of a plan on this machine."""

import shlex
from argparse import Namespace
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from secrets import token_hex
from typing import Any

from recycle_runtime.cli.options.access import add_tls_argument
from recycle_runtime.cli.options.adaptation import adaptation_options, add_adaptation_arguments
from recycle_runtime.cli.options.checkpoints import (
    add_changes_argument,
    add_checkpoint_arguments,
    add_copies_argument,
    checkpoint_every,
    neighbour_copies,
)
from recycle_runtime.cli.options.faults import FAULT_NAMES, add_fault_arguments, injected_faults
from recycle_runtime.cli.options.limits import (
    ENDLESS,
    add_debug_argument,
    add_heartbeat_argument,
    add_limit_arguments,
    add_node_argument,
    add_restart_argument,
    node_timeout,
    time_limits,
)
from recycle_runtime.cli.options.resources import add_relay_argument
from recycle_runtime.cli.options.script import add_script_arguments, check_script, note_options_of_script
from recycle_runtime.cli.options.training import (
    add_device_arguments,
    add_gpu_arguments,
    add_max_skipped_argument,
    add_peer_check_argument,
    add_plan_argument,
    add_step_arguments,
    check_device,
    check_training_arguments,
    checked_peers,
    max_skipped,
    workers_named,
)
from recycle_runtime.cli.options.watching import add_watching_arguments, check_pages, watchers
from recycle_runtime.cli.output import DONE, INPUT_ERROR, NO_PLAN, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments, given_words
from recycle_runtime.cli.signals import StopRequests, interrupts_ignored, stop_requests
from recycle_runtime.files import naming
from recycle_runtime.launcher.live_view import loss_text, summary, view
from recycle_runtime.launcher.local import (
    RunError,
    RunOptions,
    RunResult,
    check_beginning,
    check_failed,
    run_local,
)
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.chrome_trace import chrome_trace
from recycle_runtime.plan.plan_choice import NoPlanError
from recycle_runtime.protocol.messages.observers import Generation


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_script_arguments(parser)
    add_device_arguments(parser)
    add_gpu_arguments(parser)
    add_step_arguments(parser, required=False)
    add_peer_check_argument(parser)
    add_max_skipped_argument(parser)
    add_checkpoint_arguments(parser)
    add_copies_argument(parser)
    add_changes_argument(parser)
    add_adaptation_arguments(parser)
    add_fault_arguments(parser)
    add_heartbeat_argument(parser)
    add_debug_argument(parser)
    add_limit_arguments(parser)
    add_node_argument(parser, "--node-timeout")
    add_restart_argument(parser, None)
    add_relay_argument(parser)
    add_tls_argument(parser)
    parser.add_argument(
        "--trace", metavar="FILE", help="write when each op ran, for chrome://tracing or Perfetto"
    )
    add_watching_arguments(parser)
    parser.add_argument("--save", metavar="DIR", help="write the parameters of every worker at the end")


def run(arguments: Namespace, output: Output) -> int:
    failed = check_training_arguments(arguments)
    script = check_script(arguments)
    if not script and arguments.steps is None:
        raise UsageError("--program needs --steps N, the number of steps to train")
    if script and arguments.steps is not None:
        raise UsageError(
            "--steps is for --program FILE: a script says with trainer.steps(n) how many it makes"
        )
    note_options_of_script(arguments, output)
    check_pages(arguments)
    every = checkpoint_every(arguments)
    limits = time_limits(arguments)
    bundle = Bundle.read(arguments.bundle)
    faults, returns = injected_faults(arguments, bundle, failed)
    if arguments.save is not None:
        Path(arguments.save).mkdir(parents=True, exist_ok=True)
    check_device(arguments.device, bundle.pipelines * bundle.stages * bundle.tensor)
    options = RunOptions(
        bundle=arguments.bundle,
        program=arguments.program or "",
        steps=arguments.steps,
        script=script,
        failed=failed,
        seed=arguments.seed,
        device=arguments.device,
        graphs=arguments.cuda_graphs,
        undo=arguments.undo,
        trace=arguments.trace is not None,
        save=arguments.save,
        faults=faults,
        returns=returns,
        restarts_workers=_restarts_workers(arguments, has_faults=bool(faults)),
        checkpoint=arguments.checkpoint,
        checkpoint_every=every,
        resume=arguments.resume,
        resume_with=f"`{_resume_command(arguments)}`",
        max_resumes=arguments.max_resumes,
        neighbour_copies=neighbour_copies(arguments),
        accepts_changes=arguments.accept_changes,
        adaptation=adaptation_options(arguments),
        check_peers=checked_peers(arguments),
        max_skipped=max_skipped(arguments),
        stop_timeout=arguments.stop_timeout,
        heartbeat_timeout=limits.heartbeat,
        instruction_timeout=limits.instruction,
        first_step_timeout=limits.first_step,
        node_timeout=_node_timeout(arguments),
        debug=arguments.debug,
        tls=arguments.tls,
        relay=arguments.relay,
    )
    show = view(bundle.stages, bundle.pipelines, output.quiet, in_lines=arguments.debug is not None)
    requests = StopRequests()
    try:
        check_failed(bundle, failed)
    except NoPlanError as error:
        raise UsageError(f"--failed: {error}") from None
    try:
        check_beginning(bundle, options)
        with _signals(requests, options.debug), ExitStack() as stack:
            # Both files are opened before the first step, so that a wrong name costs no training.
            trace = stack.enter_context(open(arguments.trace, "w")) if arguments.trace else None
            watching = stack.enter_context(watchers(arguments, bundle, token_hex(), output, show))
            result = run_local(options, watching.take, requests.why)
            if trace is not None:
                about: dict[str, Any] = {"plan": arguments.bundle, "failed": [f"{p}:{s}" for p, s in failed]}
                about["generations"] = [_about_generation(each) for each in result.generations]
                with naming(arguments.trace):
                    trace.write(chrome_trace(result.events, about))
                    trace.close()
    except NoPlanError as error:
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


def _restarts_workers(arguments: Namespace, *, has_faults: bool) -> bool:
    if arguments.restart_workers is None:
        return not has_faults and arguments.debug is None
    return arguments.restart_workers == "on"


def _node_timeout(arguments: Namespace) -> float:
    if arguments.debug is None:
        return node_timeout("--node-timeout", arguments.node_timeout)
    workers_named("--debug", [arguments.debug])
    return ENDLESS


def _report(options: RunOptions, result: RunResult, output: Output) -> None:
    """What the run came to."""
    made = [step.step for step in result.steps]
    if words := summary(result.recoveries, made, *result.totals, *result.begins):
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
