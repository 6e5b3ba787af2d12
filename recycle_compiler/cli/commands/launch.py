"""`recyclec launch`: a batch script or a manifest that starts a job on a cluster."""

import re
from argparse import Namespace
from posixpath import normpath

from recycle_compiler.cli.bundles import read_bundle, read_bundle_job
from recycle_compiler.cli.options.files import add_output_argument
from recycle_compiler.cli.values import one_of, positive
from recycle_compiler.launch.layout import NodeLayout, NodeLayoutError, lay_out_nodes
from recycle_compiler.launch.render import Launch, render_launch
from recycle_runtime.cli.options.run import add_options
from recycle_runtime.cli.options.script import (
    add_script_arguments,
    note_options_of_script,
    script_or_program,
)
from recycle_runtime.cli.output import DONE, Output, UsageError, check_target
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.options.run import NODE

_LONGEST_NAME = 40
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_IMAGE = "recycle:latest"
_WORKERS_PER_NODE = 8
SYSTEMS = ("slurm", "kubernetes", "jobset")
_CONTAINERS = ("kubernetes", "jobset")
_MOUNTED = ("/var/lib/recycle", "/tmp", "/dev/shm")
"""Folders of the containers' own volumes, which `--checkpoint` may not be in."""


def add_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "system", type=one_of(SYSTEMS), metavar="|".join(SYSTEMS), help="what runs the cluster"
    )
    parser.add_argument("bundle", metavar="PLAN", help="a bundle, under the name that the nodes know it by")
    add_script_arguments(parser, before=2)
    add_options(parser, NODE, "program")
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="number of steps to train; of --program FILE alone"
    )
    parser.add_argument(
        "--nodes", type=positive, metavar="N", help="number of nodes (default: as few as are needed)"
    )
    parser.add_argument(
        "--workers-per-node",
        type=positive,
        default=_WORKERS_PER_NODE,
        metavar="N",
        help=f"worker processes per node (default: {_WORKERS_PER_NODE})",
    )
    parser.add_argument(
        "--device",
        type=one_of(("cuda", "cpu")),
        default="cuda",
        metavar="cuda|cpu",
        help="device to train on (default: cuda)",
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="save checkpoints in DIR and resume from the newest one"
    )
    parser.add_argument(
        "--neighbour-copies",
        type=positive,
        metavar="K",
        help="every K steps, copy the state of every stage into the memory of its node and of another one: "
        "the job goes on from there when every worker of a stage fails (default: no copies)",
    )
    parser.add_argument("--name", metavar="NAME", help="name on the cluster (default: the job's)")
    parser.add_argument(
        "--image", metavar="IMAGE", help=f"container image, for kubernetes and jobset (default: {_IMAGE})"
    )
    add_options(parser, NODE, "tls")
    add_output_argument(parser)


def run(arguments: Namespace, output: Output) -> int:
    script = script_or_program(arguments)
    _check(arguments, script)
    note_options_of_script(arguments, output)
    check_target(arguments.out, arguments.bundle)
    bundle = read_bundle(arguments.bundle)
    try:
        layout = lay_out_nodes(
            bundle.stages,
            bundle.pipelines,
            bundle.tensor,
            arguments.workers_per_node,
            arguments.nodes,
            len(bundle.vacant),
        )
    except NodeLayoutError as error:
        raise UsageError(f"{arguments.bundle}: {error}") from None
    name = arguments.name or _plain_name(read_bundle_job(bundle, arguments.bundle).name)
    launch = Launch(
        name=name,
        plan=arguments.bundle,
        program=arguments.program,
        script=script,
        steps=arguments.steps,
        device=arguments.device,
        layout=layout,
        checkpoint=arguments.checkpoint,
        image=arguments.image or _IMAGE,
        tls=arguments.tls,
        neighbour_copies=arguments.neighbour_copies or 0,
    )
    output.deliver(render_launch(arguments.system, launch), arguments.out)
    _say_what_a_node_takes_along(layout, output, has_copies=launch.neighbour_copies > 0)
    return DONE


def _check(arguments: Namespace, script: tuple[str, ...]) -> None:
    """Refuse what a script or a manifest cannot hold."""
    if script and arguments.steps is not None:
        raise UsageError(
            "--steps is for --program FILE: a script says with trainer.steps(n) how many it makes"
        )
    if not script and arguments.steps is None:
        raise UsageError("--program needs --steps N, the number of steps to train")
    given = {f"{word!r} of the script": word or None for word in script} | {
        "PLAN": arguments.bundle,
        "--program": arguments.program,
        "--checkpoint": arguments.checkpoint,
        "--image": arguments.image,
    }
    for option, text in given.items():
        if text is not None and not (text and text.isprintable()):
            raise UsageError(f"{option} must be text without line ends and the like, got {text!r}")
    name = arguments.name
    if name is not None and (len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None):
        raise UsageError(
            f"--name must be up to {_LONGEST_NAME} small letters, digits and dashes, a letter first and no "
            f"dash last, got {name!r}"
        )
    if arguments.system not in _CONTAINERS and arguments.image is not None:
        raise UsageError("--image is for kubernetes and jobset only")
    if arguments.system in _CONTAINERS and arguments.checkpoint is not None:
        _check_mount(arguments.checkpoint)


def _check_mount(folder: str) -> None:
    """A container has a volume there, and others beside it."""
    if not folder.startswith("/"):
        raise UsageError(f"--checkpoint must begin with / here, as the containers see it, got {folder!r}")
    if ":" in folder:
        raise UsageError(f"--checkpoint is where a volume is mounted, and may have no colon, got {folder!r}")
    plain = normpath("/" + folder.lstrip("/"))
    if any(plain == own or own.startswith(plain.rstrip("/") + "/") for own in _MOUNTED):
        raise UsageError(
            f"--checkpoint is where a volume is mounted, and the containers need {', '.join(_MOUNTED)} for "
            f"others: name another folder, got {folder!r}"
        )


def _plain_name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: _LONGEST_NAME - 4].rstrip("-")
    return plain if _NAME.fullmatch(plain) else f"job-{plain}".rstrip("-")


def _say_what_a_node_takes_along(layout: NodeLayout, output: Output, *, has_copies: bool) -> None:
    """A job survives the failure of a node if every stage has a worker somewhere else."""
    if not (stages := layout.stages_on_one_node()):
        return
    what = f"stage {stages[0]}" if len(stages) == 1 else f"each of the stages {', '.join(map(str, stages))}"
    left = "checkpoints and copies in memory" if has_copies and layout.nodes > 1 else "checkpoints"
    hint = f"; {left} are all that is left then"
    if most := layout.most_workers_per_node:
        hint = f"; with --workers-per-node {most} or less the job survives the failure of any node"
    output.say(f"note: all workers of {what} are on one node, whose failure ends the job{hint}")
