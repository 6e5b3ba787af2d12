"""Assignment of stages to workers."""

from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.policies.bookkeeping import grid, own_stages_first
from recycle_compiler.fleet.policy import Worker
from tests.support.jobs import unit_job

STAGES = 3
MACHINES = sorted(grid(unit_job(STAGES, 4, 1)))


def one_by_one(own: dict[Worker, int], others: list[Worker], wanted: list[int]) -> dict[Worker, int]:
    """The rule in its plainest form."""
    more, serves = list(wanted), dict[Worker, int]()
    for machine, stage in sorted(own.items()):
        if more[stage] > 0:
            more[stage] -= 1
            serves[machine] = stage
    for machine in sorted({*own, *others} - serves.keys()):
        stage = next((stage for stage, count in enumerate(more) if count > 0), None)
        if stage is not None:
            more[stage] -= 1
            serves[machine] = stage
    return serves


@given(
    st.dictionaries(st.sampled_from(MACHINES), st.integers(0, STAGES - 1)),
    st.lists(st.sampled_from(MACHINES)),
    st.lists(st.integers(0, 4), min_size=STAGES, max_size=STAGES),
)
def test_as_many_as_can_be_stay(own: dict[Worker, int], others: list[Worker], wanted: list[int]) -> None:
    assert own_stages_first(own, others, wanted) == one_by_one(own, others, wanted)
