"""`recycle-run coordinator`: the process that tracks workers, chooses plans and orders regroupings."""

import argparse
import logging
import os
import socket
from argparse import Namespace
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from recycle_runtime.cli.options.access import access, certificate
from recycle_runtime.cli.options.addresses import add_address_argument, address, host
from recycle_runtime.cli.options.parent import heed_parent
from recycle_runtime.cli.options.resources import allow_connections, relays
from recycle_runtime.cli.options.run import add_options, add_plan_argument, read_options
from recycle_runtime.cli.options.watching import Watchers, check_pages, steady_view, watchers
from recycle_runtime.cli.output import DONE, INPUT_ERROR, NO_PLAN, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.cli.signals import StopRequests, stop_requests
from recycle_runtime.coordinator.fence import LeaderFence, stand_by
from recycle_runtime.coordinator.hooks import CoordinatorHooks
from recycle_runtime.coordinator.journal import FILE, JournalError
from recycle_runtime.coordinator.leadership import Candidacy, Leadership
from recycle_runtime.coordinator.neighbour_copies import prepare_copies
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.outside import Outside
from recycle_runtime.coordinator.patience import Patience
from recycle_runtime.coordinator.plans import PlanGoneError
from recycle_runtime.coordinator.service import JobOptions, Service
from recycle_runtime.coordinator.startup_listener import kept_waiting
from recycle_runtime.coordinator.state_machine import ENDLESS
from recycle_runtime.coordinator.step_rows import told_since
from recycle_runtime.files import FolderTakenError, write_whole
from recycle_runtime.options.run import COORDINATOR, RunOptions, extended
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.address import is_known_address, published
from recycle_runtime.protocol.job_over import is_over, mark_over, unmark_over
from recycle_runtime.protocol.messages.observers import JobEnded
from recycle_runtime.protocol.server import Served, Server
from recycle_runtime.state.names import CheckpointError

_LOGGER = logging.getLogger(__name__)
_BACKLOG = 1024
_START_SECONDS = 300.0
"""For the first workers to arrive."""


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_address_argument(parser, "--listen", "where to listen; port 0 takes any free one")
    parser.add_argument(
        "--advertise",
        metavar="HOST",
        help="the host in the address that is left in --state for agents (default: that of --listen; if that "
        "is 0.0.0.0, the address from which this machine reaches others)",
    )
    parser.add_argument(
        "--candidate",
        type=int,
        metavar="N",
        help="this is one of several coordinators, numbered from 0, that share --state: the first begins, "
        "and when it is gone another takes over",
    )
    add_options(parser, COORDINATOR)
    # A socket that listens there already, which `local` passes on.
    parser.add_argument("--listener", type=int, help=argparse.SUPPRESS)
    # `local` shows the run itself.
    parser.add_argument("--observed", action="store_true", help=argparse.SUPPRESS)


def run(arguments: Namespace, output: Output) -> int:
    given = read_options(arguments)
    heed_parent(given)
    if arguments.candidate is None:
        return _coordinate(given, arguments, output, None)
    if arguments.candidate < 0:
        raise UsageError(f"--candidate must be 0 or more, got {arguments.candidate}")
    lease, requests = given.takeover_timeout, StopRequests()
    leadership = Leadership(Path(arguments.state), arguments.candidate, lease)
    with stop_requests(requests):
        found = stand_by(leadership, lambda: requests.number is not None)
    if found is not Candidacy.LEADS:
        return DONE if found is Candidacy.OVER or requests.number is None else 128 + requests.number
    fence = LeaderFence(leadership, lease)
    fence.keep()
    status = _coordinate(given, arguments, output, fence)
    fence.end()
    return status


def _coordinate(given: RunOptions, arguments: Namespace, output: Output, fence: LeaderFence | None) -> int:
    """Until the job has ended; the exit status."""
    listens_at, port = address("--listen", arguments.listen, least=0)
    known_as = host("--advertise", arguments.advertise) if arguments.advertise else listens_at
    check_pages(given.watch)
    hooks = _hooks(given)
    state = Path(arguments.state)
    own, secret = certificate(given), access(given)
    bundle = Bundle.read(given.bundle)
    processes = bundle.present * bundle.tensor
    options = extended(
        JobOptions,
        given,
        steps=ENDLESS if given.steps is None else given.steps,
        host=listens_at,
        port=port,
        token=secret,
        state=state,
        relay=relays(given.relay, processes),
        hooks=hooks,
        patience=Patience.beside(
            given.instruction_timeout, given.first_step_timeout, can_return=given.restarts_workers
        ),
        # A worker arrives when its script makes its trainer, which may come after much else.
        start_seconds=max(_START_SECONDS, given.first_step_timeout if given.steps is None else 0.0),
        takes_over=fence is not None,
        is_over=is_over(state),
        is_observed=arguments.observed,
    )
    allow_connections(processes, relay=options.relay)
    # Agents and observers stay when the job goes on from a checkpoint, and find the next coordinator here.
    # The parent process may keep the socket for the same reason.
    listener = _listener(listens_at, port) if arguments.listener is None else arguments.listener
    if arguments.listener is None and arguments.advertise and not is_known_address(known_as):
        _LOGGER.warning(
            "--advertise %s: this machine does not know that name; agents look for it nevertheless", known_as
        )
    requests = StopRequests()
    where = published(known_as, _port(listener), 0 if fence is None else fence.term)
    # Slurm may tell a whole job, and the script that started this process too.
    stopping = stop_requests(requests, patient=fence is not None)
    show = steady_view(bundle, replace(output, quiet=output.quiet or arguments.observed))
    watched = watchers(options, bundle, secret.tokens()[0], output, show)
    with stopping, watched as watching:
        serve = partial(_serve, partial(Server, certificate=own), fence)
        service, end = _run(options, serve, listener, where, requests, watching, fence, output)
    if service.has_begun:
        # Otherwise it begins anew when it is started again, once what is wrong is mended.
        mark_over(state)
    if (missing := watching.metrics.error) is not None:
        output.error(missing)
    if end.error is None:
        wants_more = service.had_ended and _wants_more(options, end)
        return INPUT_ERROR if wants_more or missing is not None else DONE
    if not (service.was_observed or service.had_ended):
        output.error(f"{end.error}{_kept(end)}")
    if requests.number is not None:
        return 128 + requests.number
    return NO_PLAN if end.no_plan else INPUT_ERROR


def _run(
    options: JobOptions,
    serve: Callable[..., Server],
    listener: int,
    where: str,
    requests: StopRequests,
    watching: Watchers,
    fence: LeaderFence | None,
    output: Output,
) -> tuple[Service, JobEnded]:
    """From the beginning, or from where a coordinator before this one was; how the job has ended."""
    resumes, state = options.max_resumes, options.state
    begun = [number for number in range(1, resumes + 1) if _folder(state, number).exists()]
    for number in range(max(begun, default=0), resumes + 1):
        own = replace(
            options,
            state=_folder(state, number),
            resume=options.resume or number > 0,
            max_resumes=resumes - number,
            is_continued=number > 0,
        )
        reading = partial(_reading, options, serve, listener, where, fence)
        try:
            service = Service(own, Outside(serve=partial(serve, listener=os.dup(listener)), reading=reading))
        except (CheckpointError, FolderTakenError, JournalError, PlanGoneError) as error:
            raise UserError(str(error)) from None
        if fence is not None:
            fence.check()
        _announce(state, where)
        if service.had_ended:
            _say_over(options, service.ended, output)
        else:
            unmark_over(state)
        folders = [_folder(state, each) for each in range(number + 1)]
        watching.metrics.catch_up(
            [told for folder in folders for told in told_since(read_journal(folder / FILE), 0)]
        )
        service.watch(watching.take)
        end = service.run(requests.why)
        if not service.goes_on:
            return service, end
        # A coordinator that is started again from here on begins there.
        prepare_copies(_folder(state, number + 1), service.goes_on_from)
    raise AssertionError("a job goes on no more often than it may")


@contextmanager
def _reading(
    options: JobOptions, serve: Callable[..., Server], listener: int, where: str, fence: LeaderFence | None
) -> Generator[None]:
    """Whoever looks for the coordinator finds it, though it reads a checkpoint."""
    if fence is not None:
        fence.check()
    # A job without a journal has not ended.
    unmark_over(options.state)
    _announce(options.state, where)
    at = options.host, options.port, options.token
    with kept_waiting(lambda served: serve(*at, served, listener=os.dup(listener))):
        yield


def _say_over(options: JobOptions, end: JobEnded | None, output: Output) -> None:
    """A job is started in the folder of one that has ended: nothing is trained."""
    assert end is not None
    before = f"the job in {options.state}"
    if end.error is not None:
        again = f"{_kept(end)} and" if end.checkpoint is not None else "; start it again with"
        output.error(f"{before} has ended: {end.error}{again} another --state")
    elif _wants_more(options, end):
        words = f"{before} is finished after {end.steps} steps, and {options.steps} are asked for"
        output.error(f"{words}: resume from its checkpoint with --resume and another --state")
    else:
        output.say(
            f"{before} is finished: all {end.steps} steps are made; for another job use another --state, and "
            "for more --steps of this one --resume too"
        )


def _kept(end: JobEnded) -> str:
    """Words about the checkpoint that a failed job has left."""
    if end.checkpoint is None:
        return ""
    path, step = end.checkpoint
    return f"; {path} has the first {step} steps: resume from it with --resume"


def _wants_more(options: JobOptions, end: JobEnded) -> bool:
    return end.error is None and end.steps < options.steps < ENDLESS


def _serve(
    serve: Callable[..., Server],
    fence: LeaderFence | None,
    host: str,
    port: int,
    token: Token,
    served: Served,
    **options: int,
) -> Server:
    """A coordinator that may be replaced hears nothing but through its fence."""
    return serve(host, port, token, served if fence is None else fence.around(served), **options)


def _folder(state: Path, resumes: int) -> Path:
    """Folder of files that must outlive the process, one for each resumption."""
    return state / f"resumed-{resumes}" if resumes else state


def _listener(host: str, port: int) -> int:
    return socket.create_server((host, port), backlog=_BACKLOG).detach()


def _port(listener: int) -> int:
    with socket.socket(fileno=os.dup(listener)) as sock:
        return int(sock.getsockname()[1])


def _hooks(options: RunOptions) -> CoordinatorHooks:
    """Hooks that inject the requested faults; without any, nothing is loaded for it."""
    if not (options.faults or options.returns):
        return CoordinatorHooks()
    from recycle_runtime.testing.timetable import fault_timetable, parse_faults, parse_returns

    try:
        return fault_timetable(parse_faults(options.faults), parse_returns(options.returns))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _announce(folder: Path, text: str) -> None:
    """Write the address for others to read, once the coordinator listens there.

    A job that is under way does not end because there is no room for it: whoever trains knows the one before.
    """
    path = folder / "address"
    try:
        write_whole(path, text.encode())
    except OSError as error:
        if not path.is_file():
            raise
        _LOGGER.warning("%s; what it holds stays there for agents", error)
