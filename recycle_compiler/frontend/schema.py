"""Blocks of a job, and the settings and switches that each of them takes."""

BLOCKS: dict[str, tuple[str, ...]] = {
    "parallel": ("pipeline", "data", "workers", "tensor", "cut", "recut", "groups", "tied", "tied_reduce"),
    "batch": ("microbatches", "global", "micro", "split"),
    "profile": (
        "unit",
        "forward",
        "backward_input",
        "backward_weight",
        "optimizer",
        "reduce",
        "gather",
        "transfer",
        "activation",
        "kept_for_weight",
        "sharded",
        "exchange",
        "spread",
        "jitter",
    ),
    "layers": (
        "count",
        "unit",
        "forward",
        "backward_input",
        "backward_weight",
        "optimizer",
        "reduce",
        "gather",
        "transfer",
        "activation",
        "kept_for_weight",
        "parameters",
        "resident",
        "sharded",
        "exchange",
        "experts",
        "spread",
        "jitter",
    ),
    "model": (
        *("layers", "hidden", "heads", "sequence", "vocabulary"),
        *("experts", "active", "imbalance", "spread", "jitter"),
    ),
    "device": ("efficiency", "overhead"),
    "optimizer": ("state", "owners"),
    "experts": ("slots", "every"),
    "memory": ("capacity",),
    "techniques": (),
    "tolerate": ("failures", "redundancy"),
    "solver": ("time_limit", "gap", "seed"),
}
"""Blocks, and the settings each takes, in the order users read them."""

TECHNIQUES = ("adaptive", "decouple", "stagger")
SWITCHES: dict[str, tuple[str, ...]] = {"techniques": TECHNIQUES}
"""Bare words that a block takes."""

REQUIRED_BLOCKS = ("parallel", "batch")
REQUIRED_SETTINGS: dict[str, tuple[str, ...]] = {
    "parallel": ("pipeline", "data"),
    "profile": ("forward", "backward_input", "backward_weight"),
    "layers": ("forward", "backward_input", "backward_weight"),
    "model": ("layers", "hidden", "heads", "sequence", "vocabulary"),
    "experts": ("slots",),
    "memory": ("capacity",),
    "tolerate": ("failures",),
}
IN_PLACE_OF_REQUIRED = {"parallel": "workers"}
"""A setting of a block that stands for all that are required there."""

TIME_UNITS = ("slot", "us", "ms", "s")
MEMORY_UNITS: dict[str, int] = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
OTHER_UNITS = {
    "sec": ("1", "s"),
    "second": ("1", "s"),
    "seconds": ("1", "s"),
    "min": ("60", "s"),
    "minute": ("60", "s"),
    "minutes": ("60", "s"),
    "h": ("3600", "s"),
    "hour": ("3600", "s"),
    "hours": ("3600", "s"),
    "msec": ("1", "ms"),
    "usec": ("1", "us"),
    "ns": ("0.001", "us"),
}
"""Units that people try: how many of which unit they are."""
UNITS = (*TIME_UNITS, *MEMORY_UNITS, "%")

EXAMPLES = {
    "parallel": "parallel { pipeline = 4  data = 3 }",
    "batch": "batch { microbatches = 6 }",
    "profile": "profile { forward = 1  backward_input = 1  backward_weight = 1 }",
    "layers": "layers { count = 32  forward = 1  backward_input = 1  backward_weight = 1 }",
    "model": "model gpt { ... }",
    "device": "device a100",
    "optimizer": "optimizer { state = sharded  owners = 2 }",
    "experts": "experts { slots = 2  every = 1 }",
    "memory": "memory { capacity = 80 GiB }",
    "techniques": "techniques { adaptive  decouple  stagger }",
    "tolerate": "tolerate { failures = 3 }",
    "solver": "solver { time_limit = 60 s  gap = 1%  seed = 0 }",
}
"""One good line of each block, for hints."""

MEANINGS = {
    "pipeline": "`pipeline` is the number of stages; 1 means no pipelining",
    "data": "`data` is the number of pipelines",
    "workers": "`workers` is the number of workers; the compiler chooses stages and pipelines",
    "cut": "`cut` is the number of layers on each stage, such as [8, 8, 6, 6]",
    "recut": "`recut = off` keeps the cut of layers into stages, whatever fails",
    "groups": "`groups = off` keeps all pipelines under one cut",
    "tied": "`tied = ends` says that the first and the last layer share parameters; a list names others",
    "tied_reduce": "`tied_reduce` is how much longer tied layers take to reduce, such as 0.4 ms",
    "tensor": "`tensor` is the number of GPUs that make up one worker",
    "microbatches": "`microbatches` is their number per pipeline and iteration",
    "global": "`global` is the number of samples per iteration, over all pipelines",
    "micro": "`micro` is the number of samples in one micro-batch",
    "split": "`split` is how much longer two halves of a micro-batch take than the whole, such as 4%",
    "count": "`count` is the number of layers",
    "layers": "`layers` is the number of transformer layers",
    "hidden": "`hidden` is the width of the model",
    "heads": "`heads` is the number of attention heads",
    "sequence": "`sequence` is the number of tokens in a sample",
    "vocabulary": "`vocabulary` is the number of different tokens",
    "efficiency": "`efficiency` is the share of the peak that matrix products reach, such as 45%",
    "state": "`state = whole` keeps the optimizer's state on every worker, `sharded` a part of it",
    "owners": "`owners` is how many workers of a stage keep each shard of the optimizer's state, such as 2",
    "experts": "`experts` is the number of experts in each layer, such as 64",
    "active": "`active` is how many experts each token goes to, such as 2",
    "imbalance": "`imbalance` is how many more tokens the busiest worker has than the mean, such as 20%",
    "exchange": "`exchange` is how long tokens take to their experts and back in one forward, such as 2 ms",
    "slots": "`slots` is how many experts each worker has room for in each mixture layer, such as 2",
    "every": "`every` is after how many steps experts are placed anew, such as 1; 0 is never",
    "overhead": "`overhead` is what the context of the device and communication take, such as 2 GiB",
    "spread": "`spread` is the standard deviation of op times from micro-batch to micro-batch, such as 20%",
    "jitter": "`jitter` is the standard deviation of the time of every op by chance, such as 5%",
    "failures": "`failures` is a number of workers, such as 3, or a share of them, such as 25%",
    "redundancy": "`redundancy` is how many workers hold each layer; with 1, a failure can end the job",
    "time_limit": "`time_limit` bounds the planning of the whole job, such as 60 s",
    "gap": "`gap` is how far from its bound a plan may stay, such as 1%",
    "seed": "`seed` is any whole number up to 2,147,483,647",
}
"""Meaning of each setting, for hints."""


def blocks_with(key: str) -> list[str]:
    """The blocks that take a setting or a switch of this name."""
    return [block for block, keys in BLOCKS.items() if key in keys or key in SWITCHES.get(block, ())]
