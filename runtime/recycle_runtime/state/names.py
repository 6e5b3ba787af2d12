"""Names of shards, and the error of a state that cannot be used. Standard library only.

A shard is the state of one layer, or of one stage where the program gives whole stages, on one
tensor-parallel rank.
"""

ACCEPT = "--accept-changes resumes from it all the same"
"""The end of a refusal that a user may overrule."""
LAYER = "layer-"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: one sentence that begins with the file or the folder."""


def shard_name(stage: int, tp_rank: int) -> str:
    """Of one stage, or of one of its tensor-parallel ranks."""
    return f"stage-{stage}-part-{tp_rank}"


def layer_shard_name(layer: int, tp_rank: int) -> str:
    """Of one layer, or of one of its tensor-parallel ranks."""
    return f"{LAYER}{layer}-part-{tp_rank}"
