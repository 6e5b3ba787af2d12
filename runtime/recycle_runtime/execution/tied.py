"""Tied parameters of a chunk: to each other or to some of other chunks, and if the plan knows."""

from collections.abc import Sequence

from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import Tied
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program
from recycle_runtime.program.ties import Tie


def tied_here(program: Program, bundle: Bundle, chunk: int, layers: Sequence[Layer]) -> Tied:
    """Those of a chunk made of these layers; ProgramError if the plan does not have them summed."""
    named = {
        name: parameter
        for layer in layers
        for name, parameter in zip(layer.parameter_names, layer.parameters, strict=True)
    }
    every = {_whole(layer, name) for layer in layers for name, _ in layer.module.named_parameters()}
    crosses = chunk in bundle.tied_chunks
    for tie in program.ties:
        here = sum(name in every for name in tie)
        if 0 < here < len(tie) and not crosses:
            raise _unknown_to_plan(program, tie)
        if crosses and not here:
            raise _other_layers(program, tie)
    # Those that are frozen need no sum.
    found = (tuple(named[name] for name in tie if name in named) for tie in program.ties)
    copies = tuple(copies for copies in found if copies)
    return Tied(copies, crosses, counts=not crosses or chunk == bundle.tied_chunks[0])


def _whole(layer: Layer, name: str) -> str:
    return f"{layer.name}.{name}" if layer.name else name


def _unknown_to_plan(program: Program, tie: Tie) -> ProgramError:
    return ProgramError(
        f"{program.path}: {' and '.join(tie)} are one parameter, and the plan puts them on different workers "
        "without summing their gradients",
        "write `tied = ends` into the `parallel` block of the job, or a list of the layers that have it, "
        "and compile it again",
    )


def _other_layers(program: Program, tie: Tie) -> ProgramError:
    return ProgramError(
        f"{program.path}: {' and '.join(tie)} are one parameter, in other layers than the job's `tied` names",
        "all parameters that are tied have to be in the same layers",
    )
