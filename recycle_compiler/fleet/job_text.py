"""What the text of a job says that its numbers do not: samples in an iteration, layers of the model."""

from typing import NamedTuple

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.fleet.limits import MOST_LAYERS
from recycle_compiler.frontend.gpt_model import GptModel
from recycle_compiler.frontend.load import parse_for_format
from recycle_compiler.frontend.names import read_names
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.shape import read_shape
from recycle_compiler.frontend.values import read_whole


class Said(NamedTuple):
    """None where the text says nothing."""

    samples: int | None = None
    """In an iteration."""
    layers: tuple[int, ...] | None = None
    """On each stage."""


def read_said(source: str) -> Said:
    """What is said; nothing where the text cannot be read, since the job itself has been."""
    report = Report(source, "")
    try:
        sections = read_names(parse_for_format(source, ""), report)
        shape = read_shape(sections, report)
        report.raise_if_any()
    except CompileError:
        return Said()
    if not (shape.pipelines and shape.microbatches and shape.stages):
        return Said()
    samples = shape.pipelines * shape.microbatches * shape.micro if shape.micro else None
    setting = sections["model"].settings.get("layers") if "model" in sections else None
    layers = read_whole(setting, report, shape.stages, MOST_LAYERS) if setting else None
    return Said(samples, spread_layers(layers, shape.stages) if layers else None)


def spread_layers(layers: int, stages: int) -> tuple[int, ...]:
    """As the cost model spreads them."""
    return GptModel(layers, 1, 1, 1, 1).layers_per_stage(stages)
