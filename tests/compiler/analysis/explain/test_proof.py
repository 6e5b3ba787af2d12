"""Bounds taken apart: their parts add up, and say what the arguments of the bounds say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from recycle_compiler.analysis.explain.proof import Proof, binding_proof, bottleneck_stage, stage_proofs
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.streams import Claims
from recycle_compiler.ir.target import Target
from tests.support.jobs import ALL, DECOUPLED, NONE, SLOT, figure3, routed_problem, small_targets, unit_job

FAILED = failure_set([(2, 2)])


def proof(job: JobSpec, stage: int, kind: str, failed: FailureSet = ()) -> Proof:
    """The best bound of this kind that a stage imposes."""
    (found,) = (
        proof
        for proof in stage_proofs(routed_problem(job, failed), job, stage)
        if proof.reason.startswith(kind)
    )
    return found


def slots(proof: Proof) -> dict[str, int]:
    return {part.what: part.ticks // SLOT for part in proof.parts}


def test_load_of_nine_micro_batches() -> None:
    found = proof(figure3(None), 2, "load", FAILED)
    assert (found.reason, found.period) == ("load of stage 2", 30 * SLOT)
    assert slots(found) == {"work: 9 micro-batches x (F 1 + I 1 + W 1)": 27, "reduction and optimizer": 3}


def test_load_with_ramp_up_under_memory() -> None:
    found = proof(figure3((4, 3, 2, 1)), 0, "load", failure_set([(2, 0)]))
    assert found.period == 33 * SLOT
    assert slots(found) == {
        "work: 9 micro-batches x (F 1 + I 1 + W 1)": 27,
        "ramp-up: a round trip of 6 less 3 further F": 3,
        "reduction and optimizer": 3,
    }


def test_load_behind_one_barrier_has_a_head() -> None:
    found = proof(figure3((4, 3, 2, 1), NONE), 3, "load")
    assert slots(found) == {
        "work: 6 micro-batches x (F 1 + B 2)": 18,
        "the first F on its way down from stage 0": 3,
        "reduction and optimizer": 3,
    }


def test_rounds_and_the_way_up_to_the_first_stage() -> None:
    found = proof(figure3((4, 3, 2, 1)), 3, "rounds")
    assert (found.reason, found.period) == ("rounds of stage 3", 27 * SLOT)
    assert slots(found) == {
        "until 18 micro-batches have come back and ended backward on stage 3": 17,
        "the last backward on its way up to stage 0": 3,
        "W of stage 0 after it": 1,
        "the first F on its way down from stage 0": 3,
        "reduction and optimizer": 3,
    }


def test_rounds_with_memory_for_one_activation() -> None:
    found = proof(figure3(1), 0, "rounds")
    assert (found.reason, found.period) == ("rounds of stage 0", 57 * SLOT)
    # F, six slots down and up, and B of two slots because there is no room to put W off.
    assert slots(found) == {
        "until 18 micro-batches have come back and ended backward on stage 0": 54,
        "reduction and optimizer": 3,
    }


def test_both_ends() -> None:
    """Two workers idle six slots together at the start, and four at the end."""
    found = proof(unit_job(3, 2, 5, capacity=2), 1, "both ends")
    assert (found.reason, found.period) == ("both ends of stage 1", 23 * SLOT)
    assert slots(found) == {
        "work: 10 micro-batches x (F 1 + I 1 + W 1), shared by 2 workers": 15,
        "idle at the start, for want of work that has arrived or fits memory": 3,
        "idle at the end, for want of work that can be left until then": 2,
        "reduction and optimizer": 3,
    }


def test_both_ends_that_do_not_divide() -> None:
    """Three idle slots of two workers are one and a half each, and a schedule needs whole ones."""
    job = figure3(4)
    claims = Claims(30 * SLOT, 32 * SLOT, 32 * SLOT, "both ends of stage 2")
    problem = routed_problem(job, FAILED)
    assert bottleneck_stage(problem, claims) == 2
    assert [(part.ticks, part.what) for part in binding_proof(problem, job, claims).parts] == [
        (27 * SLOT, "work: 18 micro-batches x (F 1 + I 1 + W 1), shared by 2 workers"),
        (3 * SLOT // 2, "idle at the end, for want of work that can be left until then"),
        (3 * SLOT, "reduction and optimizer"),
        (SLOT // 2, "rounded up to a sum of whole ops"),
    ]


@pytest.mark.parametrize(
    ("reason", "stage"),
    [
        ("load of stage 2", 2),
        ("rounds of stage 1", 1),
        ("both ends of stage 3", 3),
        ("load of stage 4", 0),
        ("something new", 0),
    ],
)
def test_the_bottleneck_is_what_the_bound_is_about(reason: str, stage: int) -> None:
    job = figure3((4, 3, 2, 1))
    claims = Claims(33 * SLOT, 33 * SLOT, 33 * SLOT, reason)
    assert bottleneck_stage(routed_problem(job, failure_set([(2, 0)])), claims) == stage


def test_a_bound_of_unknown_kind_is_stated_as_it_is() -> None:
    job = figure3(4)
    claims = Claims(29 * SLOT, 32 * SLOT, 32 * SLOT, "no schedule of 31 slots exists")
    found = binding_proof(routed_problem(job, FAILED), job, claims)
    assert (found.reason, found.period, found.parts) == ("no schedule of 31 slots exists", 32 * SLOT, ())


def test_a_claim_beyond_the_bound_is_rounding() -> None:
    job = figure3(None)
    claims = Claims(29 * SLOT, 31 * SLOT, 31 * SLOT, "load of stage 2")
    parts = binding_proof(routed_problem(job, FAILED), job, claims).parts
    assert [part.ticks // SLOT for part in parts] == [27, 3, 1]
    assert parts[-1].what == "rounded up to a sum of whole ops"


@pytest.mark.parametrize("techniques", [ALL, DECOUPLED, NONE])
def test_bytes_and_uneven_stages(techniques: Techniques) -> None:
    job = replace(
        unit_job(3, 2, 7, techniques=techniques),
        memory_unit="byte",
        activation=(300, 200, 100),
        kept_for_weight=(100, 150, 0),
        capacity=(700, 500, 100),
        transfer=(500, 250),
    )
    for stage in range(3):
        for found in stage_proofs(routed_problem(job), job, stage):
            assert sum(part.ticks for part in found.parts) == found.period


@settings(max_examples=100)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_parts_add_up(target: Target) -> None:
    problem = routed_problem(target.job, target.failed)
    for stage in range(target.job.stages):
        proofs = stage_proofs(problem, target.job, stage)
        assert [found.period for found in proofs] == sorted((f.period for f in proofs), reverse=True)
        for found in proofs:
            assert found.parts, f"{found.reason} is not taken apart"
            assert sum(part.ticks for part in found.parts) == found.period
            assert all(part.ticks > 0 for part in found.parts)
