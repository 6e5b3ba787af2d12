"""How short a pipeline can be, and how each length is cut, for policies that choose their own shapes."""

from recycle_compiler.fleet.layers import Layers, layers_of
from recycle_compiler.fleet.policies.oobleck_templates import Template, templates_of
from recycle_compiler.fleet.setting import Setting


def pipeline_shapes(setting: Setting, least: int | None = None) -> tuple[Layers, dict[int, Template]]:
    """The layers, and for each number of workers that is enough how a pipeline of them is cut.

    Where the job does not say what a worker holds and has room for, a pipeline is never shorter than the
    job's own; with `least`, never shorter than that.
    """
    layers = layers_of(setting)
    knows = layers.capacity is not None and any(layers.state)
    if least is None:
        least = 1 if knows else min(setting.job.stages, len(layers))
    return layers, templates_of(layers, least, setting.job.workers)
