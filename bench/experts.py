"""Placement of experts by popularity: `python -m bench.experts [--train-toy] [--steps N]`.

    python -m bench.experts              routing drawn at random: Zipf's law, with popularity that drifts
    python -m bench.experts --train-toy  a small language model, trained once for every placement

`bench.experts_grid` trains with six workers. Both use the placement and the capacity rule of the runtime.
Drawn routing has the setting of SYMI's evaluation (arXiv 2504.19925), whose figures are beside: 16 peers of 4
slots, 16 experts, one for each token.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from bench.report import Section
from recycle_runtime.experts.placement import Placement, place_experts

PEERS, SLOTS, EXPERTS = 16, 4, 16
POLICIES: dict[str, int] = {"static": 0, "every 100": 100, "every 50": 50, "every 10": 10, "every step": 1}
"""Steps after which experts are placed anew."""
PUBLISHED = {"static": 69, "every 100": 64, "every 50": 62, "every 10": 43}
"""Percent of dropped tokens that SYMI saves against each: DeepSpeed, and FlexMoE by steps between
placements."""
_TOKENS = 2048
"""Of a peer in a step: 64 sequences of 512 on 16 GPUs."""
_CAPACITY = 1.0
_WEIGHT_BYTES, _STATE_BYTES = 2, 16
"""Of a parameter: in a slot, and all that belongs to it in mixed precision with Adam."""

TOY_PEERS, TOY_SLOTS = 4, 4

Counts = NDArray[np.int64]


class Trace(NamedTuple):
    """Shape of drawn routing."""

    name: str
    skew: float
    """Exponent of Zipf's law."""
    drift: float
    """Standard deviation of what the logarithm of an expert's popularity changes by in a step."""


TRACES = (
    Trace("even", 0.0, 0.0),
    Trace("skewed", 1.0, 0.0),
    Trace("skewed, slow drift", 1.0, 0.02),
    Trace("skewed, fast drift", 1.0, 0.1),
)


class Outcome(NamedTuple):
    """Of one placement policy."""

    dropped: float
    """Share of all choices."""
    busiest: float
    """Rows of the busiest peer, by the mean over peers: how much longer experts take than if all had as
    many."""
    crossing: float
    """Share of rows that go to another peer."""
    moved: float
    """Replicas in a step that there were not before."""


def routing(trace: Trace, steps: int, seed: int) -> Iterator[Counts]:
    """Tokens of every peer for every expert, step by step."""
    random = np.random.default_rng(seed)
    rest = -trace.skew * np.log(np.arange(1, EXPERTS + 1))
    level = random.permutation(rest)
    # As far from even as at the beginning, however long it drifts.
    back = 0.0 if not trace.skew else min(1.0, trace.drift**2 / (2 * float(np.var(rest))))
    for _ in range(steps):
        share = np.exp(level - level.max())
        yield random.multinomial(_TOKENS, share / share.sum(), size=PEERS)
        level = level - back * (level - level.mean()) + trace.drift * random.standard_normal(EXPERTS)


def outcome(steps: Sequence[Counts], every: int) -> Outcome:
    """Of the same routing under one policy."""
    placement = place_experts([1] * EXPERTS, [SLOTS] * PEERS)
    total = dropped = crossing = moved = 0
    busiest: list[float] = []
    for step, asked in enumerate(steps):
        rows, lost = _rows(placement, asked)
        total += int(asked.sum())
        dropped += lost
        crossing += int(rows.sum() - np.trace(rows))
        here = rows.sum(0)
        busiest.append(float(here.max() / here.mean()))
        if every and (step + 1) % every == 0:
            after = place_experts([int(each) for each in asked.sum(0)], [SLOTS] * PEERS)
            moved += _moved(placement, after)
            placement = after
    return Outcome(
        dropped / total, statistics.fmean(busiest), crossing / (total - dropped), moved / len(steps)
    )


def _rows(placement: Placement, asked: Counts) -> tuple[Counts, int]:
    """Rows from peer to peer, and dropped choices: own slots first, else by turns, as `SharedExperts` does
    it."""
    replicas = np.array(placement.replicas)
    room = (_CAPACITY * _TOKENS * replicas / (PEERS * SLOTS)).astype(np.int64)
    kept = np.minimum(asked, room)
    rows = np.zeros((PEERS, PEERS), dtype=np.int64)
    by_expert = [[peer for peer, slots in enumerate(placement.peers) if e in slots] for e in range(EXPERTS)]
    for expert, holders in enumerate(by_expert):
        places = [peer for peer in holders for _ in range(placement.peers[peer].count(expert))]
        for peer in range(PEERS):
            count = int(kept[peer, expert])
            if peer in holders:
                rows[peer, peer] += count
                continue
            each, more = divmod(count, len(places))
            for turn, holder in enumerate(places):
                rows[peer, holder] += each + ((turn - peer) % len(places) < more)
    return rows, int((asked - kept).sum())


def _moved(before: Placement, after: Placement) -> int:
    """Replicas that there were not: the fewest experts that any way to place these replicas has to bring."""
    return sum(max(0, new - old) for old, new in zip(before.replicas, after.replicas, strict=True))


def drawn(steps: int) -> Section:
    """Routing drawn at random."""
    rows: list[tuple[str, ...]] = []
    for trace in TRACES:
        counts = list(routing(trace, steps, 0))
        found = {name: outcome(counts, every) for name, every in POLICIES.items()}
        ours = found["every step"].dropped
        for name, each in found.items():
            saved = 100 * (1 - ours / each.dropped) if each.dropped else 0.0
            rows.append(
                (
                    trace.name,
                    name,
                    f"{100 * each.dropped:.1f} %",
                    "" if name == "every step" else f"{saved:.0f} %",
                    f"{PUBLISHED[name]} %" if name in PUBLISHED else "",
                    f"{each.busiest:.2f}",
                    f"{100 * each.crossing:.0f} %",
                    f"{each.moved:.2f}",
                    f"{each.moved * _STATE_BYTES / (PEERS * SLOTS * _WEIGHT_BYTES):.2f}",
                )
            )
    return Section(
        title="Placement of experts under drawn routing",
        command=f"python -m bench.experts --steps {steps}",
        words=(
            f"{EXPERTS} experts, {PEERS} peers with {SLOTS} slots, {_TOKENS} tokens of each peer in each of "
            f"{steps} steps, one expert for each token, capacity {_CAPACITY:g}. Saved: how many fewer tokens "
            "a placement in every step drops. New: replicas in a step that there were not before. With the "
            "sharded state they cost no bytes beyond those that every step sends. As state: what they would "
            f"move where an expert's state is with it ({_STATE_BYTES} bytes a parameter), by what a step "
            "sends anyway."
        ),
        columns=(
            "popularity",
            "placed",
            "dropped",
            "every step saves",
            "SYMI",
            "busiest peer",
            "to other peers",
            "new",
            "as state",
        ),
        rows=tuple(rows),
    )


def overhead(repeats: int = 200) -> str:
    """Cost of placing in a step, on the host; popularity is one number for each expert in a sum."""
    counts = [[int(each) for each in asked.sum(0)] for asked in routing(TRACES[2], repeats, 1)]
    begin = time.perf_counter()
    for popularity in counts:
        place_experts(popularity, [SLOTS] * PEERS)
    seconds = (time.perf_counter() - begin) / repeats
    return f"a placement takes {1e6 * seconds:.0f} us of one core; popularity is {8 * EXPERTS} bytes a layer"


class Toy(NamedTuple):
    """Of one run of the toy model."""

    dropped: float
    losses: list[float]
    """Of every step the mean over it and those just before it."""

    def steps_to(self, level: float) -> int:
        """Until the loss is no more than this; all of them if it is not."""
        return next((step for step, loss in enumerate(self.losses, 1) if loss <= level), len(self.losses))


def train_toy(steps: int, every: int) -> Toy:
    """Train `bench/programs/experts.py` in one process; peers are micro-batches, each with its share of the
    capacity."""
    import torch
    from torch import nn

    from bench.programs import experts as program
    from recycle_runtime.experts.exchange import Alone
    from recycle_runtime.experts.mixture import MixtureOfExperts

    torch.set_num_threads(1)
    cast(Any, torch).manual_seed(0)
    model = nn.Sequential(*(layer for _, layer in program.layers()))
    mixtures = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]
    room = [TOY_SLOTS] * TOY_PEERS
    for mixture in mixtures:
        mixture.experts.exchange = Alone(place_experts([1] * program.EXPERTS, room))
        mixture.loss_scale = 1 / TOY_PEERS
    optimizer: Any = program.optimizer(list(model.parameters()))
    data = program.batches(1)
    dropped = choices = 0
    losses: list[float] = []
    for step in range(steps):
        total = 0.0
        for _ in range(TOY_PEERS):
            tokens, target = next(data)
            loss = program.loss(model(tokens), target) / TOY_PEERS
            cast(Any, loss).backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        for mixture in mixtures:
            counted = mixture.experts.take_counts()
            assert counted is not None
            dropped += int(counted.dropped)
            choices += int(counted.popularity.sum())
            if every and (step + 1) % every == 0:
                popularity: list[int] = cast(Any, counted.popularity).tolist()
                mixture.experts.exchange = Alone(place_experts(popularity, room))
    window = max(1, steps // 10)
    smooth = [statistics.fmean(losses[max(0, end - window) : end]) for end in range(1, steps + 1)]
    return Toy(dropped / choices, smooth)


def toy(steps: int) -> Section:
    """The same policies while a model learns."""
    found = {name: train_toy(steps, every) for name, every in POLICIES.items() if every < steps}
    level = found["static"].losses[-1]
    ours = found["every step"].dropped
    return Section(
        title="Placement of experts while a small language model learns",
        command=f"python -m bench.experts --train-toy --steps {steps}",
        words=(
            "bench/programs/experts.py (two blocks of width 64, 8 experts, one for each token, capacity 1) "
            f"on the bytes of this project's pages, {steps} steps of {TOY_PEERS} micro-batches of 512 "
            f"tokens, one for each of {TOY_PEERS} peers with {TOY_SLOTS} slots; in one process."
        ),
        columns=("placed", "dropped", "every step saves", "SYMI", "loss", "steps to the loss of static"),
        rows=tuple(
            (
                name,
                f"{100 * each.dropped:.1f} %",
                "" if name == "every step" else f"{100 * (1 - ours / each.dropped):.0f} %",
                f"{PUBLISHED[name]} %" if name in PUBLISHED else "",
                f"{each.losses[-1]:.3f}",
                str(each.steps_to(level)),
            )
            for name, each in found.items()
        ),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.experts", description=__doc__)
    parser.add_argument("--train-toy", action="store_true", help="train a small model in one process")
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args(arguments)
    if given.train_toy:
        print(toy(given.steps).text())
    else:
        print(drawn(given.steps).text())
        print(overhead())


if __name__ == "__main__":
    main()
