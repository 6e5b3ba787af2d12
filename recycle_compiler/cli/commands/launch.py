"""`recyclec launch`: what starts a job on a cluster."""

import re
from argparse import Namespace

from recycle_compiler.cli.bundles import read_bundle, read_bundle_job
from recycle_compiler.cli.output import DONE, USAGE, Output, UserError, check_target
from recycle_compiler.launch.layout import Layout, LayoutError, lay_out
from recycle_compiler.launch.render import Launch, render

_LONGEST_NAME = 40
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_IMAGE = "recycle:latest"


def run(arguments: Namespace, output: Output) -> int:
    _check(arguments)
    check_target(arguments.out, arguments.bundle)
    bundle = read_bundle(arguments.bundle)
    try:
        layout = lay_out(
            bundle.stages, bundle.pipelines, bundle.tensor, arguments.workers_per_node, arguments.nodes
        )
    except LayoutError as error:
        raise UserError(f"{arguments.bundle}: {error}", USAGE) from None
    name = arguments.name or _plain_name(read_bundle_job(bundle, arguments.bundle).name)
    launch = Launch(
        name=name,
        plan=arguments.bundle,
        program=arguments.program,
        steps=arguments.steps,
        device=arguments.device,
        layout=layout,
        checkpoint=arguments.checkpoint,
        image=arguments.image or _IMAGE,
    )
    output.deliver(render(arguments.system, launch), arguments.out)
    _say_what_a_node_takes_along(layout, output)
    return DONE


def _check(arguments: Namespace) -> None:
    """Refuse what a script or a manifest cannot hold."""
    given = {
        "PLAN": arguments.bundle,
        "--program": arguments.program,
        "--checkpoint": arguments.checkpoint,
        "--image": arguments.image,
    }
    for option, text in given.items():
        if text is not None and not (text and text.isprintable()):
            raise UserError(f"{option} must be text without line ends and the like, got {text!r}", USAGE)
    name = arguments.name
    if name is not None and (len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None):
        raise UserError(
            f"--name must be up to {_LONGEST_NAME} small letters, digits and dashes, a letter first and no "
            f"dash last, got {name!r}",
            USAGE,
        )
    if arguments.system != "kubernetes" and arguments.image is not None:
        raise UserError("--image is for kubernetes only", USAGE)
    if arguments.system == "kubernetes" and not (arguments.checkpoint or "/").startswith("/"):
        raise UserError(
            f"--checkpoint must begin with / here, as the containers see it, got {arguments.checkpoint!r}",
            USAGE,
        )


def _plain_name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: _LONGEST_NAME - 4].rstrip("-")
    return plain if _NAME.fullmatch(plain) else f"job-{plain}".rstrip("-")


def _say_what_a_node_takes_along(layout: Layout, output: Output) -> None:
    """A job survives the failure of a node if every stage has a worker somewhere else."""
    if not (stages := layout.stages_on_one_node()):
        return
    what = f"stage {stages[0]}" if len(stages) == 1 else f"each of the stages {', '.join(map(str, stages))}"
    hint = "; checkpoints are all that is left then"
    if most := layout.most_workers_per_node:
        hint = f"; with --workers-per-node {most} or less the job survives the failure of any node"
    output.say(f"note: all workers of {what} are on one node, whose failure ends the job{hint}")
