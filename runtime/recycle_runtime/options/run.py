"""All options of a run, in the order in which every command lists them. Standard library only.

The value that `recycle-run local` or `node` reads from its command line is what its coordinator and agents
get on theirs, and what workers read. To add an option, define it here and use it.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from recycle_runtime.options.option import (
    ABOVE_ZERO,
    FINITE,
    at_least,
    choice,
    chosen_truth,
    from_on,
    must_be,
    number,
    option,
    options_of,
    repeated,
    seconds,
    shared_path,
    switch,
    text,
)
from recycle_runtime.plan.plan_choice import parse_workers
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.framing import TOKEN

LOCAL, NODE, COORDINATOR, AGENT, WORKER, PROFILE = (
    "local", "node", "coordinator", "agent", "worker", "profile"
)  # fmt: skip
_COORDINATOR = (LOCAL, NODE, COORDINATOR)
"""Commands that take an option of the coordinator."""
_AGENT = (LOCAL, NODE, AGENT)
"""The same for agents and workers."""
_BOTH = (LOCAL, NODE, COORDINATOR, AGENT)
_CLUSTER = (NODE, COORDINATOR, AGENT)

MAX_SKIPPED: Final = 20
"""Steps in a row."""
RELAY_FROM: Final = 512
"""Worker processes of a job from which on their agents speak for them, unless the user says otherwise."""
_ENDLESS = 7 * 86400.0
"""Seconds that count as no limit."""
_OFF = "off"
_ON_OFF: Mapping[str, bool] = {"on": True, _OFF: False}
_SHORTEST_TAKEOVER = 2.0
"""Seconds that a file system and a loaded machine can keep to."""
_A_CHECKPOINT = "--checkpoint DIR, the folder of the checkpoints"
_ENDS = "end as with SIGTERM when the process that has started this one ends, however it does"
_IN_PLACE = "in place of waiting for the next one"
_TAKES_OVER = (
    "another coordinator takes over from one that has left no sign of life in the shared --state for this "
    "long"
)
_A_PROGRAM = {"help": "the Python file that defines what to train", "required": True}


def _share(word: str) -> float | None:
    return None if word == _OFF else float(word) / 100


def _percent(share: float | None) -> str:
    return _OFF if share is None else repr(100 * share)


def _is_percentage(word: str) -> bool:
    try:
        return word == _OFF or 0 < float(word) < 100
    except ValueError:
        return False


def _unless_zero(value: float) -> str | None:
    return str(value) if value else None


def _workers(words: list[str]) -> tuple[Worker, ...]:
    return parse_workers(words) if words else ()


def _worker_words(workers: tuple[Worker, ...]) -> tuple[str, ...]:
    return tuple(f"{pipeline}:{stage}" for pipeline, stage in workers)


def _one_worker(word: str) -> str:
    parse_workers([word])
    return word


@dataclass(frozen=True, slots=True)
class AdaptationOptions:
    """Options of changes that a job makes by itself while it runs."""

    mtbf: float = seconds(
        3600.0,
        "mean time between failures of the whole job; workers move to another stage only if that pays within "
        "it (default: {default})",
        _COORDINATOR,
        FINITE,
    )
    replan: float | None = option(
        0.05,
        "replan with measured op times if that shortens a step by this much (default: {default})",
        _COORDINATOR,
        given="5",
        parser={"metavar": f"PERCENT|{_OFF}"},
        check=must_be(f"a percentage between 0 and 100, or {_OFF}", _is_percentage),
        read=_share,
        write=_percent,
    )
    """The share of a step that a new plan has to save; None: nothing is replanned."""
    replan_every: int = number(
        50,
        "STEPS",
        "minimum number of steps between two such plans (default: {default})",
        _COORDINATOR,
        at_least(1),
    )
    ahead: bool = chosen_truth(
        False,
        _ON_OFF,
        "on",
        "plan for the next failure on every stage in the background (default: {default})",
        _COORDINATOR,
        flag="--plan-ahead",
    )
    recut: str = choice(
        "auto",
        ("auto", "always", _OFF),
        "cut a job in layers anew after failures and re-joins: when it pays within the mean time between "
        "failures, whenever a step gets shorter, or never (default: {default})",
        _COORDINATOR,
    )


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Places where a run is shown."""

    metrics: str | None = text("FILE", "append one JSON object per step", _COORDINATOR)
    page: str | None = text(
        "PORT",
        "serve a page that shows the run, and /metrics for Prometheus, on this port of this machine (without "
        "one: any free port); HOST:PORT lets others in who have the link, which is printed",
        _COORDINATOR,
        parser={"nargs": "?", "const": "0", "metavar": "PORT"},
    )
    tensorboard: str | None = shared_path(
        "DIR", "write event files for TensorBoard, whose package must be installed", _COORDINATOR
    )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run. A coordinator or agent has the defaults of options that are not for it."""

    bundle: str
    program: str = option(
        "",
        "the Python file that defines what to train, in place of a script",
        (*_AGENT, WORKER, PROFILE),
        parser={"metavar": "FILE"},
        differs={WORKER: _A_PROGRAM, PROFILE: _A_PROGRAM},
    )
    steps: int | None = number(
        None,
        "N",
        "number of steps to train, with --program; a script says so itself",
        (*_COORDINATOR, WORKER),
        from_on(1),
        differs={WORKER: {"help": "number of steps to train", "required": True}},
    )
    """None with a script, which says how many."""
    failed: tuple[Worker, ...] = repeated(
        "P:S,P:S",
        "workers that have failed already, pipeline:stage",
        (*_COORDINATOR, WORKER),
        read=_workers,
        write=_worker_words,
    )
    _: KW_ONLY
    script: tuple[str, ...] = ()
    """The user's script and its arguments, in place of a program."""
    device: str = choice(
        "cpu", ("cpu", "cuda"), "device to train on (default: {default})", (*_AGENT, WORKER, PROFILE)
    )
    seed: int = number(
        0,
        "N",
        "seed of parameters, data and dropout (default: {default})",
        (*_AGENT, WORKER, PROFILE),
        from_on(0),
    )
    undo: Literal["device", "host"] = choice(
        "device",
        ("device", "host"),
        "on a GPU, whose memory holds what undoes a step: the device's (12 bytes a parameter with AdamW in "
        "float32), or the host's (twice that, copied while the next step is computed)",
        _AGENT,
    )
    graphs: Literal["auto", "on", "off"] = choice(
        "auto",
        ("auto", "on", "off"),
        "on a GPU, capture the work on each buffer as CUDA graphs and replay it: where that can be (auto, "
        "the default), or else end with an error (on), or never (off)",
        _AGENT,
        flag="--cuda-graphs",
    )
    workers_per_node: int = number(
        0,
        "N",
        "how many worker processes each node has room for",
        (NODE, AGENT),
        at_least(1),
        given=None,
        required=True,
        differs={AGENT: {"help": "how many worker processes this node has room for"}},
    )
    state: str | Path | None = shared_path(  # noqa: RUF009
        "DIR",
        "a folder for what must outlive a process; nodes may share it",
        _CLUSTER,
        required=True,
        differs={
            COORDINATOR: {"help": "a folder for what must outlive this process"},
            AGENT: {"help": "a folder of this node for the agent"},
        },
    )
    """None on one machine: a temporary one."""
    nodes: int | None = number(
        None,
        "N",
        "how many nodes there will be (default: what the engine says)",
        (NODE, COORDINATOR),
        at_least(1),
        differs={
            COORDINATOR: {
                "help": "how many nodes there will be: each gets the same number of workers, so that the "
                "failure of one takes as few peers as possible (default: nodes are filled in the order in "
                "which they connect)"
            }
        },
    )
    token_file: str | None = shared_path(
        "FILE",
        "the job's token, in a file that its owner alone may read (chmod 600); it is read again for every "
        "new connection, and all its lines are accepted, so that a job can get another token while it runs "
        f"(default: the variable {TOKEN})",
        _CLUSTER,
    )
    tls: bool = switch(
        "encrypt connections to the coordinator with TLS 1.3; all processes of a job need it, or none", _BOTH
    )
    tls_certificate: str | None = shared_path(
        "FILE",
        "the coordinator's certificate in PEM format, for --tls (default: made at start with the command "
        "openssl)",
        (NODE, COORDINATOR),
    )
    tls_key: str | None = shared_path(
        "FILE", "its key in PEM format, without a password", (NODE, COORDINATOR)
    )
    coordinator_timeout: float = seconds(
        600.0,
        "look for the coordinator for this long when it is gone; workers train on meanwhile "
        "(default: {default})",
        (NODE, AGENT),
        FINITE,
    )
    check_peers: int = number(
        100,
        "N",
        "compare parameters, optimizer state and schedules of peers every N steps, and wherever all workers "
        "stop; a difference ends the run (default: {default}; 0 compares nothing)",
        _COORDINATOR,
        from_on(0),
    )
    max_skipped: int = number(
        MAX_SKIPPED,
        "N",
        "end the job after so many steps in a row that were skipped because a gradient is not finite "
        "(default: {default})",
        _COORDINATOR,
        at_least(1),
    )
    checkpoint: str | None = shared_path(
        "DIR",
        "save checkpoints in this folder, which all nodes share",
        _BOTH,
        differs={
            AGENT: {
                "help": "the folder of the job's checkpoints as this node sees it; the coordinator needs the "
                "same one"
            }
        },
    )
    checkpoint_every: int = number(
        100,
        "N",
        "steps between two checkpoints (default: 100)",
        _COORDINATOR,
        at_least(1),
        given=None,
        needs=_A_CHECKPOINT,
    )
    resume: bool = switch("resume from the newest checkpoint", _COORDINATOR, needs=_A_CHECKPOINT)
    max_resumes: int = number(
        0,
        "N",
        "how often the job resumes by itself, from copies in memory or its newest checkpoint, after every "
        "worker of a stage has failed (default: {default}; 0: it ends)",
        _COORDINATOR,
        at_least(0),
        given=3,
    )
    stop_timeout: float = seconds(
        60.0,
        "how long a last checkpoint may take after SIGTERM, SIGHUP or ctrl-C; a second signal ends the job "
        "at once (default: {default})",
        _COORDINATOR,
        must_be("a number of seconds", lambda value: value >= 0),
    )
    neighbour_copies: int = number(
        0,
        "K",
        "every K steps, copy the state of every stage in the background into the memory of its node and of a "
        "node of another stage's worker, if there is another node: when every worker of a stage fails, the "
        "job goes on from there instead of from a checkpoint, up to --max-resumes times (default: no copies)",
        _COORDINATOR,
        at_least(1),
        given=None,
    )
    accepts_changes: bool = switch(
        "resume although the source of the program, the length of its data, the seed or the number of "
        "micro-batches in a step has changed since the checkpoint was made",
        _BOTH,
        flag="--accept-changes",
    )
    resume_with: str = "resume=True"
    """The way to resume this run, for the error at its end: a command, or a field of this class."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    heartbeat_timeout: float = seconds(
        1.5,
        "kill a worker that has been stopped or blocked without a heartbeat for this long; one that is busy "
        "is left alone, and pauses that were seen before are allowed for (default: {default})",
        _AGENT,
        ABOVE_ZERO,
    )
    debug: str | None = text(
        "P:S",
        "let this worker have the terminal: breakpoints and errors there open pdb; no time limits",
        (LOCAL, AGENT),
        read=_one_worker,
    )
    instruction_timeout: float = seconds(
        60.0,
        "kill a worker that is in one instruction for this long and waits for no other (default: {default})",
        _BOTH,
        ABOVE_ZERO,
    )
    first_step_timeout: float = seconds(
        1800.0,
        "the same while a worker builds its layers and makes its first step, in which code is compiled "
        "(default: {default})",
        _BOTH,
        ABOVE_ZERO,
    )
    node_timeout: float = seconds(
        3.0,
        "a node without a heartbeat for this long has failed, if the job can continue without it "
        "(default: {default})",
        _COORDINATOR,
        # Agents send a heartbeat twice a second.
        must_be("at least 1 s", lambda value: value >= 1),
        differs={COORDINATOR: {"flag": "--heartbeat-timeout"}},
    )
    takeover_timeout: float = seconds(
        10.0,
        f"{_TAKES_OVER} (default: {{default}})",
        (NODE, COORDINATOR),
        must_be(f"at least {_SHORTEST_TAKEOVER:g} s", lambda value: _SHORTEST_TAKEOVER <= value < math.inf),
        write=_unless_zero,
        differs={
            NODE: {
                "help": f"{_TAKES_OVER}; 0: none does (default: {{default}})",
                "check": must_be(
                    f"at least {_SHORTEST_TAKEOVER:g} s",
                    lambda value: value == 0 or _SHORTEST_TAKEOVER <= value < math.inf,
                ),
            }
        },
    )
    restarts_workers: bool = chosen_truth(
        False,
        _ON_OFF,
        "on",
        "start failed workers again wherever there is room, after 1 s, and later if they fail again "
        "(default: {default})",
        _COORDINATOR,
        flag="--restart-workers",
        differs={
            LOCAL: {
                "given": None,
                "help": "start failed workers again wherever there is room, after 1 s, and later if they "
                "fail again (default: on; off when faults are injected, which --rejoin mends)",
            }
        },
    )
    relay: bool | None = chosen_truth(
        None,
        {"auto": None, **_ON_OFF},
        "auto",
        "whether worker processes speak to the coordinator through the agent of their node, in place of two "
        f"connections of their own (default: {{default}}, from {RELAY_FROM} worker processes on)",
        _COORDINATOR,
    )
    ports: str | None = text(
        "FIRST-LAST",
        "check that workers listen on these ports alone, as a firewall between nodes may want it: the system "
        "gives them out, by net.ipv4.ip_local_port_range",
        (NODE, AGENT),
    )
    end_with_parent: bool = switch(
        _ENDS,
        _CLUSTER,
        differs={
            NODE: {"help": f"{_ENDS}; workers end when their agent does, {_IN_PLACE}"},
            AGENT: {"help": f"{_ENDS}; workers end when the agent does, {_IN_PLACE}"},
        },
    )
    trace: bool = switch("record when each op runs, for `local --trace`", (AGENT,), flag="--record")
    watch: WatchOptions = field(default_factory=WatchOptions)
    save: str | None = shared_path("DIR", "write the parameters of every worker at the end", _AGENT)
    faults: tuple[str, ...] = repeated("", argparse.SUPPRESS, (COORDINATOR,), flag="--fault")
    """Such as `kill=1:2@5`."""
    returns: tuple[str, ...] = repeated("", argparse.SUPPRESS, (COORDINATOR,), flag="--rejoin")
    """Such as `1:2@8`."""

    def with_time(self) -> Self:
        """Without time limits where somebody looks around in a debugger."""
        if self.debug is None:
            return self
        limits = ("heartbeat_timeout", "instruction_timeout", "first_step_timeout", "node_timeout")
        return replace(self, **dict.fromkeys(limits, _ENDLESS))


def told(options: RunOptions, command: str) -> dict[str, Any]:
    """Values for a process that is started with this command, by the name of each option."""
    found = {path[-1]: reduce(getattr, path, options) for path, _ in options_of(RunOptions, command)}
    return {"bundle": options.bundle} | found


def command_words(options: RunOptions, command: str, *more: str) -> list[str]:
    """The command line of a process of a run, with `more` words of its own."""
    words = [command, options.bundle, *more]
    for path, each in options_of(RunOptions, command):
        words += each.words(reduce(getattr, path, options))
    return [*words, *(options.script if command == AGENT else ())]


def shared_paths(options: RunOptions, command: str) -> dict[str, str]:
    """Paths for a process, as they are from whatever directory it works in."""
    marked = {path[-1] for path, each in options_of(RunOptions, command) if each.is_shared_path}
    found = {name: value for name, value in told(options, command).items() if value is not None}
    return {name: str(Path(found[name]).absolute()) for name in found.keys() & {"bundle", *marked}}


Extended = TypeVar("Extended", bound=RunOptions)


def extended(definition: type[Extended], options: RunOptions, **circumstances: Any) -> Extended:
    """The options of a run, with what a process knows besides or better."""
    given = {each.name: getattr(options, each.name) for each in fields(RunOptions)}
    return definition(**given | circumstances)
