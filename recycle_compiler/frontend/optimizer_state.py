"""The `optimizer` block: whether every worker of a stage has the whole state of the optimizer, or a part.

optimizer { state = sharded  owners = 2 }      each shard of the state is with two workers of its stage
"""

from typing import NamedTuple

from recycle_compiler.frontend.check import Sections
from recycle_compiler.frontend.cut import setting_of
from recycle_compiler.frontend.diagnostics import Mistakes, spell
from recycle_compiler.frontend.shape import MOST_GPUS, GivenShape
from recycle_compiler.frontend.syntax import Name
from recycle_compiler.frontend.values import meaning_of, read_whole

DEFAULT_OWNERS = 2


class StateRules(NamedTuple):
    """Rules of what a worker keeps for each parameter."""

    owners: int
    """Of each shard; 0 where every worker has the whole state."""
    staggered: bool
    slots: int = 0
    """Of each worker for experts, in each mixture layer; of their weights it has no others."""


_WORDS = ("whole", "sharded")


def read_owners(sections: Sections, shape: GivenShape, report: Mistakes) -> int | None:
    """Owners of each shard; 0 where the state is whole; None when the report says why not."""
    state, owners = (setting_of(sections, "optimizer", key) for key in ("state", "owners"))
    if state and not (isinstance(state.value, Name) and state.value.text in _WORDS):
        message = f"state must be `whole` or `sharded`, got {spell(state.value)}"
        report.error("type", message, state.value.span, meaning_of("state"))
        return None
    is_sharded = state is not None and isinstance(state.value, Name) and state.value.text == "sharded"
    if owners is None:
        most = shape.pipelines or shape.workers or DEFAULT_OWNERS
        return min(DEFAULT_OWNERS, most) if is_sharded else 0
    if not is_sharded:
        message = "`owners` is given, and every worker has the whole state"
        report.error("conflict", message, owners.key.span, "write `state = sharded`, or remove it")
        return None
    number = read_whole(owners, report, 1, MOST_GPUS)
    most = shape.workers or shape.pipelines
    if number is None or most is None or number <= most:
        return number
    noun, key = ("workers of the job", "workers") if shape.workers else ("workers of a stage", "data")
    message = f"owners may be at most {most:,}, the {noun}, got {number:,}"
    report.error("range", message, owners.value.span, f"lower `owners`, or raise `{key}`")
    return None
