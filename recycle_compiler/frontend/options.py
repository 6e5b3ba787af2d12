"""The blocks that steer planning: `techniques`, `tolerate` and `solver`."""

from recycle_compiler.frontend.amounts import read_duration
from recycle_compiler.frontend.names import Sections
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.shape import MOST_GPUS, Shape
from recycle_compiler.frontend.syntax import Quantity, Setting
from recycle_compiler.frontend.values import read_share, read_whole
from recycle_compiler.frontend.wording import count
from recycle_compiler.ir.job import SolverOptions, Techniques

_MOST_SECONDS = 7 * 24 * 3600
_LARGEST_SEED = (1 << 31) - 1


def read_techniques(sections: Sections) -> Techniques:
    """The techniques that are on: all, unless the job lists some."""
    section = sections.get("techniques")
    if section is None:
        return Techniques()
    on = section.switches
    return Techniques("adaptive" in on, "decouple" in on, "stagger" in on)


def read_solver(sections: Sections, report: Report) -> SolverOptions | None:
    """The options of the solver; what is not said keeps its default."""
    default = SolverOptions()
    section = sections.get("solver")
    if section is None:
        return default
    settings = section.settings
    time_limit: int | None = default.time_limit_ns
    gap: int | None = default.gap_ppm
    seed: int | None = default.seed
    if setting := settings.get("time_limit"):
        time_limit = read_duration(setting, 1, _MOST_SECONDS * 10**9, report)
    if setting := settings.get("gap"):
        share = read_share(setting, report)
        gap = share.floor_of(10_000) if share else None
    if setting := settings.get("seed"):
        seed = read_whole(setting, report, 0, _LARGEST_SEED)
    if time_limit is None or gap is None or seed is None:
        return None
    return SolverOptions(time_limit, gap, seed)


def most_failures(stages: int, pipelines: int) -> int:
    """How many failures a plan can be made for: every stage keeps one live worker.

    That holds without re-routing too: peers are renamed so that losses share pipelines.
    """
    return stages * (pipelines - 1)


def read_failures(sections: Sections, shape: Shape, report: Report) -> int | None:
    """How many workers may fail; none unless the job says so."""
    section = sections.get("tolerate")
    setting = section.settings.get("failures") if section else None
    if setting is None:
        return 0
    share = isinstance(setting.value, Quantity) and setting.value.unit is not None
    if share:
        percent = read_share(setting, report)
        number = None
        if percent and shape.stages and shape.pipelines:
            number = percent.floor_of(shape.stages * shape.pipelines) // 100
    else:
        number = read_whole(setting, report, 0, MOST_GPUS)
    if number is not None and shape.stages and shape.pipelines:
        _check_survivable(number, shape.stages, shape.pipelines, setting, report)
    return number


def _check_survivable(failures: int, stages: int, pipelines: int, setting: Setting, report: Report) -> None:
    most = most_failures(stages, pipelines)
    if failures <= most:
        return
    size = f"{count(stages, 'stage')} x {count(pipelines, 'pipeline')}"
    message = f"{size} survive at most {count(most, 'failure')}, got {failures:,}"
    hint = "every stage needs one live worker: lower `failures` or raise `data`"
    report.error("too-many-failures", message, setting.value.span, hint, no_plan=True)
