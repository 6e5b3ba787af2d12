"""A line that says how layers compute: what is compiled, what is computed twice, and what that costs.

4 layers: 2 eager, 2 compiled; weights of what is compiled or checkpointed do not wait for W
"""

from collections import Counter
from collections.abc import Iterable

from torch import nn

from recycle_runtime.program.compiled import is_compiled


def ways_text(ways: Iterable[str]) -> str:
    """Of the layers of a chunk or a model, each in one of these ways."""
    counts = Counter(ways)
    found = [f"{count} {way}" for way, count in sorted(counts.items(), key=lambda each: each[0] != _EAGER)]
    total = sum(counts.values())
    head = f"{total} layer{'s' if total > 1 else ''}: {', '.join(found)}"
    return head if set(counts) == {_EAGER} else f"{head}; {_AT_ONCE}"


_EAGER = "eager"
_AT_ONCE = "weights of what is compiled or checkpointed do not wait for W"


def way_of(layer: nn.Module) -> str:
    """Execution mode of a layer: compiled, checkpointed, both, or eager."""
    modules = list(layer.modules())
    ways = ["compiled"] if any(map(is_compiled, modules)) else []
    # As models of `transformers` say it; what a forward does by itself is not seen.
    if any(getattr(each, "gradient_checkpointing", False) is True for each in modules):
        ways.append("checkpointed")
    return " and ".join(ways) or _EAGER
