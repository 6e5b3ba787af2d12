"""The job of a bundle as text that `recyclec` reads, with other op times. Needs no torch.

A bundle keeps its job resolved to whole ticks, a line for each field. What comes out here is a job file of
its own: it needs no profile beside it, and says all but what moves of workers would copy.

Of a job in layers it has the layers, so that the same text serves for plans under other cuts. What was
measured of a stage is shared out among its layers as they were planned.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from recycle_runtime.plan.moves import StageLoads
from recycle_runtime.plan.recut import stage_ranges

_SHAPE = ("stages", "pipelines", "tensor", "microbatches")
_LARGEST = 1 << 50
_LONGEST_SEARCH = 60_000_000_000
"""Nanoseconds: planning beside training should not take minutes."""


class StageTimes(NamedTuple):
    """Ticks of each op on each stage."""

    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    backward_weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    """Of a worker while nobody has failed; with a sharded state it steps its own shards."""
    reduce: tuple[int, ...]
    gather: tuple[int, ...] = ()
    """Of weights, with a sharded state; empty without."""

    def written(self) -> dict[str, tuple[int, ...]]:
        """By the names that a job has for them, without what is not in it."""
        return {name: ticks for name, ticks in self._asdict().items() if ticks}


_OF_PEERS = ("reduce", "gather")
"""Given as so many peers take them."""
_OF_A_MICROBATCH = ("forward", "backward_input", "backward_weight")
_MILLION = 1_000_000


class JobText:
    """The resolved job of a bundle, read."""

    def __init__(self, text: str) -> None:
        rows = [line.split() for line in text.splitlines() if line.strip()]
        self._fields = {row[0]: row[1:] for row in rows}
        shape = dict(zip(_SHAPE, self._fields["shape"][1::2], strict=True))
        self.stages, self.microbatches = int(shape["stages"]), int(shape["microbatches"])
        self._pipelines = int(shape["pipelines"])
        self.is_abstract = self._fields["units"][0] == "slot"
        """True if times are in slots, which are no seconds."""
        self.is_adaptive = "adaptive" in self._fields["techniques"]
        """True if a worker may run micro-batches of others."""
        self.cut = tuple(map(int, self._fields.get("cut", ())))
        """Number of layers of each stage; empty for a job of whole stages."""
        self.is_in_layers = "layer_forward" in self._fields
        """True if it says what each layer costs: the job that a bundle is for, if its cut can change."""
        self.parts = int(self._fields.get("parts", ["1"])[0])
        """Into how many parts micro-batches are split."""
        self.owners = int(self._fields.get("owners", ["0"])[0])
        """Of each shard of the optimizer's state; 0 where it is whole."""
        names = (name for name in StageTimes._fields if name != "gather" or self.owners)
        self.times = StageTimes(*(self._numbers(name) for name in names))

    def owned(self, stage: int, gone: int = 0) -> int:
        """Of the shards of a stage, how many a worker owns at most when so many cells of it are empty."""
        shards = self._numbers("shards")[stage]
        lost = max(0, gone - (self._numbers("absent") or (0,) * self.stages)[stage])
        return min(shards, -(-self.owners * shards // max(1, shards - lost)))

    def parameter_bytes(self, stage: int) -> int:
        """Bytes that a worker that moves to this stage copies; 0 if the profile does not say."""
        sizes = [int(word) for word in self._fields["parameters"]]
        held = (chunk for group, _ in self._groups for chunk, here in enumerate(group) if here == stage)
        return sum(sizes[chunk] for chunk in held)

    @property
    def has_one_chunk_each(self) -> bool:
        """True if every worker holds one chunk: times are measured by worker, and planned by chunk."""
        return self._chunk_stages == list(range(self.stages))

    @property
    def loads(self) -> StageLoads:
        """Time that each stage takes with the workers that it has."""
        units, each, once = [0] * self.stages, [0] * self.stages, [0] * self.stages
        ops = (self.times.forward, self.times.backward_input, self.times.backward_weight)
        for group, share in self._groups:
            for chunk, stage in enumerate(group):
                units[stage] = share
                each[stage] += sum(row[chunk] for row in ops)
                once[stage] += self.times.optimizer[chunk]
        return StageLoads(self._pipelines, tuple(units), tuple(each), tuple(once))

    @property
    def _groups(self) -> list[tuple[list[int], int]]:
        """The stage whose workers hold each chunk and the micro-batches, of each group of pipelines; mostly
        there is one."""
        groups = self._fields.get("groups")
        if groups is None:
            return [(self._chunk_stages, self._pipelines * self.microbatches)]
        stages = ([int(stage) for stage in word.split(",")] for word in groups)
        return list(zip(stages, map(int, self._fields["shares"]), strict=True))

    @property
    def _chunk_stages(self) -> list[int]:
        """The stage whose workers hold each chunk; of groups, in the first."""
        words = self._fields.get("chunks")
        return list(range(self.stages)) if words is None else [int(word) for word in words]

    def with_times(self, times: StageTimes, under: "JobText | None" = None) -> str:
        """The text of a job file. `times` are of the stages of this job, or of one that is it under another
        cut."""
        if self.is_in_layers:
            return self._text_in_layers(self._by_layer(times, under or self))
        return self._text_in_stages(times)

    def _numbers(self, name: str) -> tuple[int, ...]:
        return tuple(map(int, self._fields.get(name, ())))

    def _step_of_all(self, stage: int, share: int) -> int:
        """Ticks of a step of all shards, of which a worker takes so many for its own."""
        return share * self._numbers("shards")[stage] // self.owned(stage) if self.owners else share

    def _text_in_stages(self, times: StageTimes) -> str:
        fields = self._fields
        whole = (self._step_of_all(stage, share) for stage, share in enumerate(times.optimizer))
        times = times._replace(optimizer=tuple(whole))
        settings = [f"unit = {'slot' if self.is_abstract else 'us'}"]
        for name, ticks in times.written().items():
            settings.append(f"{name} = {_list([_thousandths(_within(tick)) for tick in ticks])}")
        if self.stages > 1:
            settings.append(f"transfer = {_list([_thousandths(int(word)) for word in fields['transfer']])}")
        for name in ("activation", "kept_for_weight"):
            settings.append(f"{name} = {self._amounts([int(word) for word in fields[name]])}")
        if self.owners:
            settings.append(f"sharded = {self._amounts([*self._numbers('state')])}")
        return self._text(
            "profile {\n    " + "\n    ".join(settings) + "\n  }",
            f"memory {{ capacity = {self._capacity()} }}",
        )

    def _by_layer(self, times: StageTimes, under: "JobText") -> StageTimes:
        """Times of each layer, whose sums are those of the stages."""
        found: dict[str, tuple[int, ...]] = {}
        whole = (under._step_of_all(stage, share) for stage, share in enumerate(times.optimizer))
        for name, of_stages in times._replace(optimizer=tuple(whole)).written().items():
            planned = self._layers(name)
            if name in _OF_PEERS:
                owners = self.owners if name == "reduce" else 0
                planned = [_as_many_take(whole, self._pipelines, owners) for whole in planned]
            row: list[int] = []
            for stage, (first, past) in enumerate(stage_ranges(under.cut)):
                here = planned[first:past]
                amount = self._of_this_job(name, of_stages[stage], stage, sum(here), under)
                row += _shared_out(amount, here, least=int(name in _OF_A_MICROBATCH))
            found[name] = tuple(row)
        return StageTimes(**found)

    def _of_this_job(self, name: str, measured: int, stage: int, planned: int, under: "JobText") -> int:
        """Measured time of a stage of another cut, for whole micro-batches and as many peers as here."""
        if name in _OF_PEERS and under is not self:
            before = getattr(under.times, name)[stage]
            return planned * measured // before if before else planned
        if name in _OF_A_MICROBATCH and under.parts == 2:
            over = int(self._fields.get("split", ["0"])[0])
            return 2 * measured * _MILLION // (_MILLION + over)
        return measured

    def _text_in_layers(self, times: StageTimes) -> str:
        settings = [f"unit = {'slot' if self.is_abstract else 'us'}"]
        for name, ticks in times.written().items():
            settings.append(f"{name} = {_list([_thousandths(_within(tick)) for tick in ticks])}")
        if transfers := self._layers("transfer"):
            settings.append(f"transfer = {_list([_thousandths(tick) for tick in transfers])}")
        for name in ("activation", "kept_for_weight", "resident"):
            settings.append(f"{name} = {self._amounts(self._layers(name))}")
        if self.owners:
            settings.append(f"sharded = {self._amounts(self._layers('state'))}")
        settings.append(f"parameters = {_list([f'{size} B' for size in self._layers('parameters')])}")
        (capacity,) = self._fields["layer_capacity"]
        if capacity != "unlimited":
            (capacity,) = self._amounts([int(capacity)])[1:-1].split(", ")
        return self._text(
            "layers {\n    " + "\n    ".join(settings) + "\n  }", f"memory {{ capacity = {capacity} }}"
        )

    def _layers(self, name: str) -> list[int]:
        """Zeros, where the job does not say it."""
        words = self._fields.get(f"layer_{name}")
        return [0] * sum(self.cut) if words is None else list(map(int, words))

    def _text(self, costs: str, memory: str) -> str:
        """With everything that is not measured as it is."""
        fields = self._fields
        solver = dict(zip(fields["solver"][0::2], map(int, fields["solver"][1::2]), strict=True))
        limit = min(solver["time_limit_ns"], _LONGEST_SEARCH)
        pipeline, data, tensor, _ = fields["shape"][1::2]
        cut = split = redundancy = ""
        if self.is_in_layers:
            cut = f"  cut = {_list([str(layers) for layers in self.cut])}"
            redundancy = f"  redundancy = {fields['redundancy'][0]}"
        if "split" in fields:
            split = f"  split = {_decimal(int(fields['split'][0]), 4)}%"
        state = f"optimizer {{ state = sharded  owners = {self.owners} }}\n  " if self.owners else ""
        blocks = [
            f"parallel {{ pipeline = {pipeline}  data = {data}  tensor = {tensor}{cut}{self._tied()} }}",
            f"batch {{ microbatches = {self.microbatches}{split} }}",
            costs,
            f"{state}{memory}",
            f"techniques {{ {'  '.join(fields['techniques'])} }}",
            f"tolerate {{ failures = {fields['failures'][0]}{redundancy} }}",
            f"solver {{ time_limit = {_decimal(limit, 9)} s  gap = {_decimal(solver['gap_ppm'], 4)}%  "
            f"seed = {solver['seed']} }}",
        ]
        return f"job {fields['job'][0]} {{\n  " + "\n  ".join(blocks) + "\n}\n"

    def _tied(self) -> str:
        """Layers or stages that share parameters; measured reductions have the time of their sum in them."""
        tied = [int(word) for word in self._fields.get("tied", ())]
        if self.cut and not self.is_in_layers:
            ends = list(accumulate(self.cut))
            tied = sorted({bisect_right(ends, layer) for layer in tied})
        return f"  tied = {_list(list(map(str, tied)))}" if len(tied) > 1 else ""

    def _capacity(self) -> str:
        words = self._fields["capacity"]
        if all(word == "unlimited" for word in words):
            return "unlimited"
        # Where only some stages have a limit, the others get one that holds the whole iteration.
        units = self._pipelines * self.microbatches
        whole = [int(word) * units for word in self._fields["activation"]]
        found = [most if word == "unlimited" else int(word) for word, most in zip(words, whole, strict=True)]
        if self.owners:
            # With the shards that a worker keeps, which were taken off.
            shards = self._numbers("shards")
            for stage, state in enumerate(self._numbers("state")):
                found[stage] += -(-state * self.owned(stage) // shards[stage])
        return self._amounts(found)

    def _amounts(self, amounts: list[int]) -> str:
        if self._fields["units"][1] == "byte":
            return _list([f"{amount} B" for amount in amounts])
        return _list([_thousandths(amount) for amount in amounts])


def _as_many_take(whole: int, workers: int, owners: int) -> int:
    """Of a sum that takes very many workers `whole` ticks; a part more for every owner after the first."""
    further = max(0, min(owners, workers) - 1)
    return -(-whole * (workers - 1 + further) // workers)


def _shared_out(amount: int, weights: Sequence[int], least: int) -> list[int]:
    """In proportion, with the same sum unless some would be less than the least."""
    all_weights = sum(weights) or len(weights)
    shares = [weight if sum(weights) else 1 for weight in weights]
    ends = [amount * end // all_weights for end in accumulate(shares, initial=0)]
    return [max(least, end - begin) for begin, end in pairwise(ends)]


def _within(tick: int) -> int:
    return min(tick, _LARGEST)


def _thousandths(amount: int) -> str:
    return _decimal(amount, 3)


def _decimal(amount: int, places: int) -> str:
    whole, part = divmod(amount, 10**places)
    return f"{whole}.{part:0{places}}".rstrip("0").rstrip(".")


def _list(words: list[str]) -> str:
    return f"[{', '.join(words)}]"
