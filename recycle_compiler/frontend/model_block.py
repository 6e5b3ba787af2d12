"""The `model gpt { ... }` and `device` blocks: costs derived rather than measured."""

from recycle_compiler.frontend.costs import Costs
from recycle_compiler.frontend.devices import DEFAULT_EFFICIENCY_PPM, DEVICES, Device
from recycle_compiler.frontend.gpt_model import GptModel, Run, StageCosts, stage_costs
from recycle_compiler.frontend.names import Section, Sections
from recycle_compiler.frontend.profile import DISPLAY_UNIT
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.schema import BLOCKS
from recycle_compiler.frontend.shape import Shape
from recycle_compiler.frontend.values import LARGEST, read_share, read_whole
from recycle_compiler.frontend.wording import count, did_you_mean, one_of, quote

_LEAST_EFFICIENCY_PPM = 10_000
MOST_LAYERS = 1 << 16
_LARGEST_SIZE = 1 << 24


def read_model(section: Section, sections: Sections, shape: Shape, report: Report) -> Costs | None:
    """The costs of a model on a device."""
    variant = section.block.variant
    if variant is None or variant.text != "gpt":
        name = variant or section.block.head
        message = f"model must be `gpt`, got {quote(name.text)}"
        report.error("unknown-model", message, name.span, "measure a profile for any other model")
        return None
    sizes = {key: _size(section, key, report) for key in BLOCKS["model"]}
    device = _read_device(sections.get("device"), section, report)
    efficiency = _read_efficiency(sections.get("device"), report)
    micro = _require_micro(sections, shape, report)
    known = {key: size for key, size in sizes.items() if size is not None}
    if len(known) < len(sizes):
        return None
    model = GptModel(**known)
    _check_model(model, section, shape, report)
    if not (device and efficiency and micro and shape.stages and shape.pipelines and shape.tensor):
        return None
    if model.layers < shape.stages:
        return None
    run = Run(shape.stages, shape.pipelines, shape.tensor, micro, device, efficiency)
    return _gather(stage_costs(model, run), section, report)


def _size(section: Section, key: str, report: Report) -> int | None:
    setting = section.settings.get(key)
    most = MOST_LAYERS if key == "layers" else _LARGEST_SIZE
    return read_whole(setting, report, 1, most) if setting else None


def _read_device(section: Section | None, model: Section, report: Report) -> Device | None:
    names = one_of(DEVICES)
    if section is None:
        report.error(
            "missing", "a model needs a `device`", model.span, f"write `device a100`; known are {names}"
        )
        return None
    variant = section.block.variant
    if variant is None:
        report.error("missing-name", "`device` is followed by its name", section.span, "write `device a100`")
        return None
    if variant.text not in DEVICES:
        hint = did_you_mean(variant.text, DEVICES, "measure a profile for any other device")
        report.error(
            "unknown-device", f"device must be {names}, got {quote(variant.text)}", variant.span, hint
        )
        return None
    return DEVICES[variant.text]


def _read_efficiency(section: Section | None, report: Report) -> int | None:
    setting = section.settings.get("efficiency") if section else None
    if setting is None:
        return DEFAULT_EFFICIENCY_PPM
    share = read_share(setting, report, _LEAST_EFFICIENCY_PPM)
    return share.floor_of(10_000) if share else None


def _require_micro(sections: Sections, shape: Shape, report: Report) -> int | None:
    batch = sections.get("batch")
    # Without it, `global` has been reported already.
    if batch and "micro" not in batch.settings and "global" not in batch.settings:
        hint = "write `micro = 1`, the sequences in one micro-batch"
        report.error(
            "missing", "block `batch` has no setting `micro`, and a model needs it", batch.span, hint
        )
    return shape.micro


def _check_model(model: GptModel, section: Section, shape: Shape, report: Report) -> None:
    settings = section.settings
    if shape.stages and model.layers < shape.stages:
        message = f"layers must be at least {shape.stages:,}, one for each stage, got {model.layers:,}"
        report.error("range", message, settings["layers"].value.span, "lower `pipeline`")
    if model.hidden % model.heads:
        message = f"heads must divide hidden = {model.hidden:,}, got {model.heads:,}"
        report.error("divide", message, settings["heads"].value.span, "every head has the same width")
    elif shape.tensor and model.heads % shape.tensor:
        message = f"tensor must divide {count(model.heads, 'head')}, got {shape.tensor:,}"
        report.error("divide", message, settings["heads"].value.span, "a tensor rank holds whole heads")


def _gather(stages: tuple[StageCosts, ...], section: Section, report: Report) -> Costs | None:
    """Costs by kind rather than by stage."""
    names = StageCosts.__slots__
    columns: dict[str, tuple[int, ...]] = {
        name: tuple(getattr(stage, name) for stage in stages) for name in names
    }
    for name, values in columns.items():
        if max(values) > LARGEST:
            message = f"the model's {name} is absurdly large on one stage: {max(values):,}"
            report.error("too-large", message, section.span, "check the sizes of the model")
            return None
    columns["transfer"] = columns["transfer"][:-1]
    return Costs(unit=DISPLAY_UNIT, memory_unit="byte", span=section.span, **columns)
