"""Costs of each layer of a model: what a job must know to be re-cut.

A layer is the smallest part of the model that a cut can move: a transformer block, the embedding, the head.
Its text is lines of exact integers within the text of a job:

    layer_forward 1000 1000 1000
    ...
    layer_capacity unlimited
"""

from collections.abc import Iterator
from dataclasses import dataclass

PER_LAYER = (
    "forward",
    "backward_input",
    "backward_weight",
    "optimizer",
    "reduce",
    "transfer",
    "activation",
    "kept_for_weight",
    "parameters",
    "resident",
)
"""Names of the tuples, in the order of their lines."""
MORE = ("gather", "state", "counts", "exchange", "state_counts", "expert_counts", "slot_transfer")
"""Those that not all jobs have; their lines are left out where all values are 0."""
_STRICTLY_POSITIVE = ("forward", "backward_input", "backward_weight")


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Tuples with one value per layer, in the units of the job; a worker's capacity."""

    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    backward_weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    reduce: tuple[int, ...]
    """Of a ring of very many workers; n workers take (n - 1) / n of it."""
    transfer: tuple[int, ...]
    """From layer l to l + 1 and back, where a cut lies between them; one value fewer than layers."""
    activation: tuple[int, ...]
    kept_for_weight: tuple[int, ...]
    parameters: tuple[int, ...]
    """Bytes that a worker taking over this layer must copy, optimizer state included; 0 when not known."""
    resident: tuple[int, ...]
    """Part of a worker's capacity that the layer's weights, gradients and optimizer state take."""
    capacity: int | None
    """Of a whole worker, for state and activations; None is unlimited."""
    gather: tuple[int, ...] = ()
    """Ticks until very many workers have the layer's new weights, where optimizer state is sharded."""
    state: tuple[int, ...] = ()
    """Capacity that all shards of the layer take, beside `resident`. `optimizer` is for all of
    them too."""
    counts: tuple[int, ...] = ()
    """Parameters of each layer on one GPU; 0 where that is not known."""
    exchange: tuple[int, ...] = ()
    """Ticks in which tokens of a micro-batch go to their experts and back, between very many workers: n take
    (n - 1) / n of it. `forward` and `backward_input` do not have it in them."""
    state_counts: tuple[int, ...] = ()
    """Parameters of each layer whose state is shared out, where workers have fewer: not all experts."""
    expert_counts: tuple[int, ...] = ()
    """Experts of each mixture in the layer; 0 where it has none, or their number is not known."""
    slot_transfer: tuple[int, ...] = ()
    """Ticks of one expert of each mixture to another worker; 0 where that is not known."""

    def __post_init__(self) -> None:
        for name in MORE:
            if not getattr(self, name):
                object.__setattr__(self, name, (0,) * self.count)

    @property
    def count(self) -> int:
        """Number of layers."""
        return len(self.forward)

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant."""
        for name in (*PER_LAYER, *MORE):
            values: tuple[int, ...] = getattr(self, name)
            expected = self.count - (name == "transfer")
            if len(values) != expected:
                yield f"{name} of layers needs {expected} values, got {len(values)}"
            least = 1 if name in _STRICTLY_POSITIVE else 0
            if any(value < least for value in values):
                yield f"{name} of layers must be at least {least} everywhere"
        if any(kept > whole for kept, whole in zip(self.kept_for_weight, self.activation, strict=False)):
            yield "kept_for_weight of a layer exceeds its activation"


def print_layers(costs: LayerCosts) -> list[str]:
    """The lines of the text."""
    names = (*PER_LAYER, *(name for name in MORE if any(getattr(costs, name))))
    lines = [" ".join((f"layer_{name}", *map(str, getattr(costs, name)))) for name in names]
    return [*lines, f"layer_capacity {'unlimited' if costs.capacity is None else costs.capacity}"]


def parse_layers(fields: dict[str, list[str]]) -> LayerCosts:
    """Read what `print_layers` wrote, by the first word of each line; KeyError or ValueError if it is not."""
    (capacity,) = fields["layer_capacity"]
    names = (*PER_LAYER, *(name for name in MORE if f"layer_{name}" in fields))
    columns = {name: tuple(int(word) for word in fields[f"layer_{name}"]) for name in names}
    return LayerCosts(capacity=None if capacity == "unlimited" else int(capacity), **columns)
