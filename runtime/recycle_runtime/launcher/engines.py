"""Number of this node in its job, as the engine that has started it says. Standard library only.

| engine | this node | first node | port |
|---|---|---|---|
| torchrun, static | GROUP_RANK | MASTER_ADDR | MASTER_PORT + 1: torchrun listens at MASTER_PORT |
| any, by hand | NODE_RANK, or what the engines below set | MASTER_ADDR | MASTER_PORT |
| Slurm | SLURM_NODEID | first of the step's node list | from the job's number |
| Kubernetes, indexed Job | JOB_COMPLETION_INDEX | pod 0 of the Job in RECYCLE_SERVICE | 29500 |
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from recycle_runtime.protocol.address import is_host

PORT = 29500
SERVICE = "RECYCLE_SERVICE"
_RANKS = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID", "JOB_COMPLETION_INDEX")
_COUNTS = ("GROUP_WORLD_SIZE", "NNODES", "SLURM_STEP_NUM_NODES", "SLURM_NNODES")
_BRACKETS = re.compile(r"\[([^\],-]*)[^\]]*\]")
_ELASTIC = (
    "torchrun restarts every node when one fails or returns, unless its rendezvous is static, and all state "
    "would be gone: start it with --rdzv-backend static --nnodes N --node-rank R --max-restarts 0"
)


class EngineError(ValueError):
    """The environment does not say which node this is, in one sentence."""


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Of this node in its job."""

    node: int
    host: str
    """Of the first node, which coordinates."""
    port: int
    nodes: int | None
    """Number of nodes, if that is known."""

    @property
    def is_first(self) -> bool:
        return self.node == 0


def find_place(
    environment: Mapping[str, str], port: int | None = None, launcher: Sequence[str] = ()
) -> NodePlace:
    """`port` is the user's choice; `launcher` the command line of the process that has started this one."""
    _check_one_process_a_node(environment)
    host, usual = _first_node(environment, launcher)
    nodes = next((_number(environment, name) for name in _COUNTS if environment.get(name)), None)
    place = NodePlace(_rank(environment), host, usual if port is None else port, nodes)
    if not 1 <= place.port < 1 << 16:
        raise EngineError(f"the coordinator's port must be from 1 to 65535, got {place.port}")
    if nodes is not None and not place.node < nodes:
        raise EngineError(f"there is no node {place.node} among {nodes}: they are counted from 0")
    return place


def _check_one_process_a_node(environment: Mapping[str, str]) -> None:
    if environment.get("TORCHELASTIC_RUN_ID") and environment.get("LOCAL_WORLD_SIZE", "1") != "1":
        raise EngineError("one process on each node starts all its workers: use torchrun --nproc-per-node 1")
    if environment.get("SLURM_LOCALID", "0") != "0":
        raise EngineError("one process on each node starts all its workers: use srun --ntasks-per-node=1")


def _first_node(environment: Mapping[str, str], launcher: Sequence[str]) -> tuple[str, int]:
    """Its host, and the port at which its coordinator listens unless the user names another."""
    master = environment.get("MASTER_ADDR", "").strip()
    if master and not is_host(master):
        raise EngineError(f"MASTER_ADDR must be a host without a port, got {master!r}: MASTER_PORT has that")
    if environment.get("TORCHELASTIC_RUN_ID"):
        _refuse_elastic(environment, launcher)
        if not master:
            raise EngineError("MASTER_ADDR must be set to the host of the first node: torchrun does that")
        return master, _number(environment, "MASTER_PORT", PORT) + 1
    if master:
        return master, _number(environment, "MASTER_PORT", PORT)
    names = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if names:
        # All nodes of a job agree on it, and two jobs on one node do not meet.
        port = 20_000 + _number(environment, "SLURM_JOB_ID", 0) % 10_000
        return first_host(names), _number(environment, "MASTER_PORT", port)
    if environment.get("JOB_COMPLETION_INDEX"):
        return _first_pod(environment), _number(environment, "MASTER_PORT", PORT)
    raise EngineError(
        "nothing says which node this is: start it with srun, torchrun or as an indexed Job, or set "
        "MASTER_ADDR to the host of the first node and NODE_RANK to 0, 1, ..."
    )


def first_host(names: str) -> str:
    """The first of a node list as Slurm writes it, such as `gpu[003-007,9],login1`."""
    return _BRACKETS.sub(r"\1", re.split(r",(?![^\[]*\])", names, maxsplit=1)[0])


def _first_pod(environment: Mapping[str, str]) -> str:
    """By the name that a headless service gives it; pods of an indexed Job are called JOB-INDEX."""
    index, name = environment["JOB_COMPLETION_INDEX"], environment.get("HOSTNAME", "")
    service = environment.get(SERVICE)
    if not service or not name.endswith(f"-{index}"):
        raise EngineError(
            f"as a pod of an indexed Job, {SERVICE} must name its headless service, which is also the "
            "subdomain of its pods, or MASTER_ADDR the first pod"
        )
    return f"{name.removesuffix(f'-{index}')}-0.{service}"


def _refuse_elastic(environment: Mapping[str, str], launcher: Sequence[str]) -> None:
    """Refuse elastic launches, asked for by torchrun's own options or the variables that set them."""
    options = {"nnodes": "", "rdzv-backend": "static", "standalone": ""}
    for name in options:
        options[name] = environment.get(f"PET_{name.upper().replace('-', '_')}", options[name])
    for word, after in pairwise([*launcher, "--"]):
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("--") and (name := name.replace("_", "-")) in options:
            options[name] = value if equals else after
    is_range = ":" in options["nnodes"]
    restarts = _number(environment, "TORCHELASTIC_MAX_RESTARTS", 0)
    if restarts or is_range or options["standalone"] or options["rdzv-backend"] != "static":
        raise EngineError(_ELASTIC)


def _rank(environment: Mapping[str, str]) -> int:
    for name in _RANKS:
        if environment.get(name):
            return _number(environment, name)
    if environment.get("SLURM_JOB_NODELIST") and not environment.get("MASTER_ADDR"):
        raise EngineError("SLURM_NODEID does not say which node this is: start it with srun")
    raise EngineError(
        "NODE_RANK must be set to the number of this node: 0 for that of MASTER_ADDR, then 1, ..."
    )


def _number(environment: Mapping[str, str], name: str, usual: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and usual is not None:
        return usual
    if not (text.isascii() and text.isdigit()):
        raise EngineError(f"{name} must be a number, got {text!r}")
    return int(text)
