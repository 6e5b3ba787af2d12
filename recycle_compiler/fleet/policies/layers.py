"""A model as a row of layers, for policies that cut it into other stages than the job does.

A job says what whole stages cost. A stage's share is divided evenly among its layers; what the first and the
last stage cost beyond that of the others is the embedding's and the head's, and stays with the first and the
last layer. Times are in ticks, memory is in the job's own unit.

Cutting takes time and memory that grow with the square of the layers. A model of very many is cut between
blocks of neighbouring ones, each within a stage of the job, so that the job's own cut stays possible.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from recycle_compiler.fleet.setting import Setting

_STATE_PER_COPIED = 18 / 14
"""A worker holds a gradient as well, which is never copied: 18 bytes per parameter in place of 14."""

MOST_BLOCKS = 512
"""Unless the job has more stages."""

Row = tuple[float, ...]
"""One number for each layer."""


@dataclass(frozen=True)
class Layers:
    """What each layer costs."""

    forward: Row
    backward: Row
    """Both halves together."""
    finish: Row
    """Reduction and optimizer."""
    activation: Row
    state: Row
    """Weights, gradients and optimizer state; 0 where the job does not say."""
    transfer: float
    """Between any two stages: the mean of the job's."""
    capacity: float | None
    """For state and activations together, on the smallest worker; None is unlimited."""

    def __len__(self) -> int:
        return len(self.forward)

    @cached_property
    def work(self) -> Row:
        """Running sums of forward and backward: work[j] - work[i] is what layers i to j - 1 take."""
        both = (f + b for f, b in zip(self.forward, self.backward, strict=True))
        return tuple(accumulate(both, initial=0.0))

    def fits(self, cuts: tuple[int, ...]) -> bool:
        """Whether 1F1B on stages between these boundaries has the memory; the first is 0."""
        if self.capacity is None:
            return True
        stages = len(cuts) - 1
        return all(
            sum(self.state[begin:end]) + (stages - stage) * sum(self.activation[begin:end]) <= self.capacity
            for stage, (begin, end) in enumerate(pairwise(cuts))
        )


def layers_of(setting: Setting) -> Layers:
    """The layers of a job."""
    job = setting.job
    state = tuple(amount * _STATE_PER_COPIED for amount in job.parameters)
    known = [room + held for room, held in zip(job.capacity, state, strict=True) if room is not None]
    backward = tuple(i + w for i, w in zip(job.backward_input, job.backward_weight, strict=True))
    finish = tuple(r + o for r, o in zip(job.reduce, job.optimizer, strict=True))
    return Layers(
        forward=_blocks(job.forward, setting.layers),
        backward=_blocks(backward, setting.layers),
        finish=_blocks(finish, setting.layers),
        activation=_blocks(job.activation, setting.layers),
        state=_blocks(state, setting.layers),
        transfer=sum(job.transfer) / len(job.transfer) if job.transfer else 0.0,
        capacity=min(known) if len(known) == job.stages else None,
    )


def _blocks(stages: tuple[float, ...], layers: tuple[int, ...]) -> Row:
    """The value of every layer, or of every block where they are too many."""
    row = _apart(stages, layers)
    if len(row) <= MOST_BLOCKS:
        return row
    most = max(1, MOST_BLOCKS // len(layers))
    borders = [0]
    for count in layers:
        first, blocks = borders[-1], min(count, most)
        borders += [first + count * block // blocks for block in range(1, blocks + 1)]
    return tuple(sum(row[begin:end]) for begin, end in pairwise(borders))


def _apart(stages: tuple[float, ...], layers: tuple[int, ...]) -> Row:
    """The value of every layer, from those of whole stages."""
    each = [value / count for value, count in zip(stages, layers, strict=True)]
    inner = sorted(each[1:-1] or each)
    usual = inner[len(inner) // 2]
    shares: list[list[float]] = []
    for stage, (value, count) in enumerate(zip(stages, layers, strict=True)):
        at_end = stage in (0, len(stages) - 1)
        layer = min(each[stage], usual) if at_end else each[stage]
        row = [layer] * count
        row[0 if stage == 0 else -1] += value - layer * count
        shares.append(row)
    return tuple(value for row in shares for value in row)
