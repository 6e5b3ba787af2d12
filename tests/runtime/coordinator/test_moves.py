"""Which workers move, and when that pays."""

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.coordinator.moves import ChangeRate, CostOfMoves, least_moves, weigh
from recycle_runtime.plan.assembly import Worker

Counts = tuple[int, ...]


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, set[Worker], Counts]:
    """Pipelines, the lost, and other counts of as many losses that leave everybody a peer."""
    stages, pipelines = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    grid = [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    lost: set[Worker] = set()
    wanted = [0] * stages
    for worker in draw(st.permutations(grid))[: draw(st.integers(0, stages * (pipelines - 1)))]:
        if sum(other[1] == worker[1] for other in lost) < pipelines - 1:
            lost.add(worker)
    for _ in lost:
        wanted[draw(st.sampled_from([s for s in range(stages) if wanted[s] < pipelines - 1]))] += 1
    return pipelines, lost, tuple(wanted)


@given(losses())
def test_moves_lead_to_the_wanted_counts_and_none_is_needless(case: tuple[int, set[Worker], Counts]) -> None:
    pipelines, lost, wanted = case
    stages = range(len(wanted))
    live = {(p, s) for p in range(pipelines) for s in stages} - lost
    counts = tuple(sum(worker[1] == stage for worker in lost) for stage in stages)
    moves = least_moves(live, counts, wanted, pipelines)
    after = (live - moves.keys()) | set(moves.values())
    assert moves.keys() <= live and set(moves.values()) <= lost
    assert len(after) == len(live)
    assert tuple(pipelines - sum(worker[1] == stage for worker in after) for stage in stages) == wanted
    assert len(moves) == sum(max(0, a - b) for a, b in zip(counts, wanted, strict=True))


def test_workers_go_to_near_stages_and_slow_ones_stay() -> None:
    live = {(p, s) for p in range(3) for s in range(4)} - {(1, 2), (0, 3)}
    assert least_moves(live, (0, 0, 1, 1), (1, 1, 0, 0), 3) == {(0, 0): (1, 2), (0, 1): (0, 3)}
    moves = least_moves(live, (0, 0, 1, 1), (1, 1, 0, 0), 3, last={(0, 0)})
    assert moves == {(1, 0): (1, 2), (0, 1): (0, 3)}


def test_what_is_expected_counts_like_one_change_seen() -> None:
    rate = ChangeRate(3600.0)
    assert rate.seconds(50.0) == 3600.0
    rate.begin(100.0)
    rate.begin(300.0)
    assert rate.seconds(500.0) == 4000.0
    for _ in range(9):
        rate.change()
    assert rate.seconds(500.0) == 400.0


def measured_costs() -> CostOfMoves:
    costs = CostOfMoves()
    costs.regrouped(0.9, copying=0.4)
    costs.copied(4_000_000, 0.4)
    costs.state_bytes = {1: 10_000_000, 2: 20_000_000}
    return costs


def test_a_move_costs_a_regroup_and_a_copy() -> None:
    costs = measured_costs()
    assert costs.of({(0, 0): (1, 2)}) == 0.5 + 2.0
    # Another stage copies at the same time, the same stage afterwards.
    assert costs.of({(0, 0): (1, 2), (0, 3): (0, 1)}) == 0.5 + 2.0
    assert costs.of({(0, 0): (1, 2), (0, 3): (0, 2)}) == 0.5 + 4.0


def test_before_anything_is_measured_there_is_an_estimate() -> None:
    costs = CostOfMoves()
    costs.state_bytes = {2: 3_000_000_000}
    assert costs.of({(0, 0): (1, 2)}) == 2.0 + 3.0


def test_it_moves_when_that_pays_before_the_next_change() -> None:
    weighed = weigh({(0, 0): (1, 2)}, (100, 97), 0.81, measured_costs(), 3564.0, 10_000)
    assert weighed.pays
    assert str(weighed) == (
        "move 0:0 to 1:2: saves 3.0 % of 0.81 s a step, pays after 103 steps, 4400 expected: moved"
    )


def test_it_stays_when_the_next_change_or_the_end_is_near() -> None:
    soon = weigh({(0, 0): (1, 2)}, (100, 97), 0.81, measured_costs(), 60.0, 10_000)
    ends = weigh({(0, 0): (1, 2)}, (100, 97), 0.81, measured_costs(), 3564.0, 100)
    assert not soon.pays and not ends.pays
    assert str(ends).endswith("pays after 103 steps, 100 expected: not moved")
    same = weigh({(0, 0): (1, 2)}, (100, 100), 0.81, measured_costs(), 3564.0, 10_000)
    assert not same.pays
    assert str(same) == "move 0:0 to 1:2: saves nothing: not moved"


@given(st.integers(1, 10**15), st.integers(1, 1000), st.integers(1, 1000))
def test_only_the_ratio_of_periods_counts(unit: int, now: int, after: int) -> None:
    def pays(scale: int) -> float:
        return weigh({(0, 0): (1, 2)}, (now * scale, after * scale), 0.5, measured_costs(), 600, 500).saving

    assert abs(pays(unit) - pays(1)) < 1e-12
