"""The `experts` block: room for the experts of mixture layers, which the workers of a stage share.

experts { slots = 2  every = 1 }      two slots of each worker in each mixture layer, filled again every step
"""

from typing import NamedTuple

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.check import Sections
from recycle_compiler.frontend.cut import setting_of
from recycle_compiler.frontend.diagnostics import Mistakes, quantity
from recycle_compiler.frontend.values import read_whole
from recycle_compiler.ir.expert_messages import MOST_SLOTS
from recycle_compiler.ir.job import JobSpec, Techniques

_MOST_STEPS = 1_000_000
PLACED_EVERY = 1
"""Steps between placements, where the job does not say."""
_NOT_WITH = (
    ("parallel", "tied", "stages that share parameters", "remove `tied`, or the block `experts`"),
    ("batch", "split", "micro-batches that are split in two", "remove `split`"),
)


class ExpertRules(NamedTuple):
    """Rules of what workers keep of experts; 0 slots where there are none."""

    slots: int = 0
    placed_every: int = 0


def read_experts(
    sections: Sections, owners: int | None, techniques: Techniques, report: Mistakes
) -> ExpertRules | None:
    """Slots and placements; None when the report says what is wrong."""
    section = sections.get("experts")
    if section is None:
        return ExpertRules()
    slots, every = (section.settings.get(key) for key in ("slots", "every"))
    count = read_whole(slots, report, 1, MOST_SLOTS) if slots else None
    steps = read_whole(every, report, 0, _MOST_STEPS) if every else PLACED_EVERY
    good = count is not None and steps is not None
    for message, span, hint in _conflicts(sections, section.span, owners, techniques):
        report.error("conflict", message, span, hint)
        good = False
    return ExpertRules(count, steps) if good and count is not None and steps is not None else None


def _conflicts(
    sections: Sections, block: Span, owners: int | None, techniques: Techniques
) -> list[tuple[str, Span, str]]:
    """Combinations that experts do not allow: a sentence, the place, a hint."""
    found: list[tuple[str, Span, str]] = []
    if owners == 0:
        message = "peers share experts only where they share the optimizer's state too"
        found.append((message, block, "write `optimizer { state = sharded }`"))
    if not techniques.adaptive:
        message = "peers that share experts need the technique `adaptive`"
        found.append((message, sections["techniques"].span, "add `adaptive`, or remove the block `experts`"))
    for name, key, what, hint in _NOT_WITH:
        if setting := setting_of(sections, name, key):
            found.append((f"experts cannot be combined with {what}", setting.key.span, hint))
    return found


def check_room(
    experts: int, rules: ExpertRules, job: JobSpec, place: Span, sections: Sections, report: Mistakes
) -> None:
    """Report too few slots for one of each expert on a stage: with all its workers, or with those that the
    failures leave, however they are spread."""
    if not rules.slots:
        message = "layers have experts, and the job does not say how many a worker has room for"
        report.error("missing", message, place, "add `experts { slots = 2 }`")
        return
    room = rules.slots * job.pipelines
    if experts > room:
        slots = f"{quantity(room, 'slot')} of {job.pipelines:,} workers"
        message = f"{quantity(experts, 'expert')} do not fit into {slots}"
        report.error("range", message, place, "raise `slots` or `data`")
        return
    live = job.pipelines - -(-job.failures // job.stages)
    if live < 1 or live * rules.slots >= experts:
        # Without a live worker nothing else matters, and that is said elsewhere.
        return
    message = (
        f"{job.failures} failures leave {live} workers on some stage, whose {live * rules.slots} slots do "
    )
    message += f"not hold {experts} experts"
    span = sections["tolerate"].settings["failures"].value.span
    report.error("too-many-failures", message, span, "lower `failures`, or raise `slots`", no_plan=True)
