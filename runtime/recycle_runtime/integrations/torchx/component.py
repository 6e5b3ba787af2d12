"""The component. Torchx reads its options from the signature, and knows these spellings of types alone."""

# ruff: noqa: UP006, UP035, UP045
import os
import shlex
from typing import Dict, List, Optional

from recycle_runtime.integrations.words import JobError, JobWords
from recycle_runtime.protocol.framing import TOKEN, new_token

try:
    from torchx import specs  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
except ImportError:
    raise ImportError("torchx is not installed: pip install 'recyclec[torchx]'") from None


def job(  # pyright: ignore[reportUnknownParameterType]
    *script: str,
    plan: str,
    state: str,
    workers_per_node: int,
    program: Optional[str] = None,
    steps: Optional[int] = None,
    nodes: Optional[int] = None,
    options: str = "",
    name: str = "recycle",
    image: str = "recycle:latest",
    port: int = 29500,
    h: Optional[str] = None,
    cpu: int = 0,
    gpu: int = -1,
    memMB: int = 0,  # noqa: N803
    max_retries: int = 100,
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
) -> specs.AppDef:
    """Train with a plan; the job goes on when workers or nodes fail.

    Args:
        script: your script and its arguments, in place of a program
        plan: the bundle, under the name that the nodes know it by
        state: a folder that all nodes share, for what must outlive a process
        workers_per_node: worker processes on each node
        program: the Python file that defines what to train
        steps: number of steps to train, of a program
        nodes: number of agents (default: as few as the job needs)
        options: more options of `recycle-run node`, as one string
        name: of the app
        image: that the roles run in
        port: where the coordinator listens
        h: a named resource for each agent, in place of cpu, gpu and memMB
        cpu: for each agent (default: one for each worker)
        gpu: for each agent (default: one for each worker with --device cuda)
        memMB: for each agent (default: 4096 for each worker)
        max_retries: how often the scheduler may start a role again
        env: variables of all processes
        mounts: as torchx takes them
    """
    wanted = {"program": program, "steps": steps, "state": state, "workers_per_node": workers_per_node}
    words = JobWords(plan, script, wanted, nodes, shlex.split(options))
    # Whoever can read the app's description at the scheduler can read a token in it.
    token = {} if words.has_token_file else {TOKEN: os.environ.get(TOKEN) or new_token()}
    variables = {**token, **(env or {})}
    gpus = (workers_per_node if words.device == "cuda" else 0) if gpu < 0 else gpu
    common = {
        "image": image,
        "entrypoint": "bash",
        "max_retries": max_retries,
        "retry_policy": specs.RetryPolicy.REPLICA,
        "mounts": specs.parse_mounts(mounts) if mounts else [],
    }
    first = f"$${{{specs.macros.rank0_env}:-localhost}}:{port}"
    folder = f"{os.path.abspath(state)}/agent-{specs.macros.replica_id}"
    agent, plan_word, *rest = words.agent(folder)
    coordinator = [*words.coordinator(None), "--listen", f"0.0.0.0:{port}"]
    return specs.AppDef(
        name=name,
        roles=[
            specs.Role(
                name="coordinator",
                args=["-c", _command(coordinator)],
                resource=specs.resource(cpu=1, gpu=0, memMB=1024),
                port_map={"coordinator": port},
                env=dict(variables),
                **common,
            ),
            specs.Role(
                name="agent",
                args=["-c", f"{_command([agent, plan_word])} --coordinator {first} {_quoted(rest)}"],
                num_replicas=words.nodes,
                resource=specs.resource(
                    cpu=cpu or workers_per_node, gpu=gpus, memMB=memMB or 4096 * workers_per_node, h=h
                ),
                env=dict(variables),
                **common,
            ),
        ],
    )


def _command(words: List[str]) -> str:
    return f"exec recycle-run {_quoted(words)}"


def _quoted(words: List[str]) -> str:
    """For bash, which reads them once torchx has put the replica's number in."""
    for word in words:
        if "$" in word.replace(specs.macros.replica_id, ""):
            raise JobError(f"torchx and its schedulers replace what follows a dollar sign, got {word!r}")
    return shlex.join(words)
