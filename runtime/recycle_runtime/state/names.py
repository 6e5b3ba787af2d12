"""Names of shards, and the error of a state that cannot be used. Standard library only.

A shard is the state of one layer, or of one stage where the program gives whole stages, on one
tensor-parallel rank. Where optimizer state is in shards too, each of these has a name of its own, which
begins with that of its layer or stage.
"""

import re
from collections.abc import Collection, Iterable

ACCEPT = "--accept-changes resumes from it all the same"
"""The end of a refusal that a user may overrule."""
LAYER = "layer-"
_OPTIMIZER = re.compile(r"(?P<base>.+)-optimizer-(?P<shard>0|[1-9][0-9]*)-of-(?P<count>[1-9][0-9]*)")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: one sentence that begins with the file or the folder."""


def shard_name(stage: int, tp_rank: int) -> str:
    """Of one stage, or of one of its tensor-parallel ranks."""
    return f"stage-{stage}-part-{tp_rank}"


def layer_shard_name(layer: int, tp_rank: int) -> str:
    """Of one layer, or of one of its tensor-parallel ranks."""
    return f"{LAYER}{layer}-part-{tp_rank}"


def optimizer_shard_name(name: str, shard: int, count: int) -> str:
    """Of one of so many shards of the optimizer state of a layer or stage."""
    return f"{name}-optimizer-{shard}-of-{count}"


def without_optimizers(names: Iterable[str]) -> list[str]:
    """Those of layers or stages."""
    return [name for name in names if _OPTIMIZER.fullmatch(name) is None]


def optimizers_of(name: str, names: Iterable[str]) -> list[str]:
    """Those of the optimizer state of one layer or stage, in order; none if it is in one piece."""
    found = (match for each in names if (match := _OPTIMIZER.fullmatch(each)) and match["base"] == name)
    return [match[0] for match in sorted(found, key=lambda match: int(match["shard"]))]


def are_whole(names: Collection[str], wanted: Collection[str]) -> bool:
    """True if they are those of these layers or stages, with all shards of each of their optimizers."""
    if sorted(without_optimizers(names)) != sorted(wanted):
        return False
    counts: dict[str, set[tuple[int, int]]] = {}
    for match in filter(None, map(_OPTIMIZER.fullmatch, names)):
        counts.setdefault(match["base"], set()).add((int(match["shard"]), int(match["count"])))
    return counts.keys() <= set(wanted) and all(
        found == {(shard, len(found)) for shard in range(len(found))} for found in counts.values()
    )
