"""Lines that say how layers compute: what is compiled, what is computed twice, what is copied, and what
that costs.

4 layers: 2 eager, 2 compiled; weights of what is compiled or checkpointed do not wait for W
3 tensors handed on: 1 not contiguous, 4.1 KB a micro-batch copied before it is sent
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from recycle_runtime.plan.recut import size_text
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


def reordered_bytes(tensor: torch.Tensor) -> int:
    """Bytes that are put in order before a tensor is sent: messages are made of contiguous ones."""
    return 0 if tensor.is_contiguous() else tensor.numel() * tensor.element_size()


def copied_text(copied: Sequence[int]) -> str:
    """Of each tensor that layers or a chunk hand on, how many bytes."""
    head = f"{len(copied)} tensor{'s' if len(copied) != 1 else ''} handed on"
    if not any(copied):
        return f"{head}, none copied before it is sent"
    apart = sum(map(bool, copied))
    return f"{head}: {apart} not contiguous, {size_text(sum(copied))} a micro-batch copied before it is sent"
