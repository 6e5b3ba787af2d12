"""Settings of a run that resumes against those of its checkpoint; differences are reported.

A script's arguments may well be others, its number of steps for one. Options of optimizers come from the
checkpoint, with schedules and all: a learning rate that was changed in the program has no effect.
"""

from collections.abc import Iterator, Mapping, Sequence

from recycle_runtime.checkpoint.storage import ShardFiles
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer.undo import Options, group_options
from recycle_runtime.state.layer_state import arguments_text

_PLAIN = (bool, int, float, str, tuple)
_MOVED = ("lr", "momentum", "betas")
"""Schedulers change them from step to step; what they began with is another option then."""


def other_arguments(before: object, now: Sequence[str] | None) -> Iterator[str]:
    """In words, where the script that made the checkpoint had others; older ones do not say."""
    if isinstance(before, str) and now is not None and before != arguments_text(now):
        yield f"the script's arguments are {arguments_text(now)!r}, and were {before!r}"


def options_of_layers(layers: Sequence[Layer]) -> dict[int, list[Options]]:
    """As they are now, by the number of the layer."""
    return {layer.number: options for layer in layers if (options := layer.options)}


def options_of_shard(shard: ShardFiles) -> list[Options]:
    """Of an optimizer whose state is in shards; none where this shard has nothing to step."""
    state = shard.outline()["state"]
    return [group_options(group) for group in state["optimizer"]["param_groups"]] if state else []


def other_options(made: Mapping[int, list[Options]], saved: Mapping[int, list[Options]]) -> Iterator[str]:
    """In words: of optimizers as the program has made them, and as they were saved."""
    found = {
        name: words
        for number in made
        for before, after in zip(saved[number], made[number], strict=False)
        for name, words in _differences(before, after)
    }
    if found:
        words = ", ".join(found[name] for name in sorted(found))
        yield f"the optimizer goes on as it was saved, with {words}"


def _differences(saved: Options, made: Options) -> Iterator[tuple[str, str]]:
    moves = "initial_lr" in saved or "initial_lr" in made
    for name, value in made.items():
        is_plain = isinstance(value, _PLAIN) and isinstance(saved.get(name), _PLAIN)
        if is_plain and saved[name] != value and not (moves and name in _MOVED):
            yield name, f"{name} {saved[name]} in place of {value}"
