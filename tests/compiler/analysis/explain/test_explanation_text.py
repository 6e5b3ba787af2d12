"""The words and the JSON of an explanation, whole, for plans counted by hand."""

import json
from dataclasses import replace

from recycle_compiler.analysis.explain.document import explanation_document
from recycle_compiler.analysis.explain.report import explain
from recycle_compiler.analysis.explain.text import explanation_text
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.streams import Claims
from recycle_compiler.planner.compile import plan_failed
from tests.compiler.analysis.explain.hand_made import ONE_PIPELINE, TWO_WINDOWS, hand_made
from tests.support.jobs import SLOT, unit_job

WORDS = """\
one-pipeline: 2 stages, 1 pipeline, 3 micro-batches each; failed: none
period 19 slots, at most 26.7 % above optimal: no plan is faster than 15 slots; makespan 18 slots
fault-free 1F1B takes 17 slots: this plan runs at 0.895x its speed

bottleneck: stage 0
  1 of 1 worker alive, 3 micro-batches on each, busy 52.6 % of the period
  its own window, from first op to optimizer, takes 19 slots

binding bound: rounds of stage 0, 15 slots
  F wait for room in turn, the rest has to return, and the last ones to leave through earlier stages
  13  until 3 micro-batches have come back and ended backward on stage 0
   1  W of stage 0 after it
   1  reduction and optimizer
  other bounds: both ends of stage 0 (15 slots), load of stage 0 (13 slots)

critical path: 19 slots, the window of stage 0
  0:0 F0.0 (1 op, 1 slot)
  -> transfer 1 slot -> 0:1 F0.0..I0.1 (5 ops, 5 slots)
  -> transfer 1 slot -> 0:0 I0.1..F0.2 (4 ops, 4 slots)
  -> transfer 1 slot -> 0:1 F0.2..I0.2 (2 ops, 2 slots)
  -> transfer 1 slot -> 0:0 I0.2..W0.2 (2 ops, 2 slots)
  -> reduction and optimizer of stage 0 (1 slot)
  = 7 compute on stage 0 + 7 compute elsewhere + 4 transfer + 1 reduction and optimizer \
+ 0 waiting for nothing

where the time of each stage goes, in percent of the period
  stage  alive  busy  ramp-up  tail  transfer  imbalance  memory  dependency  slack
      0      1  52.6     15.8  21.1       5.3        0.0     5.3         0.0    0.0
      1      1  52.6      0.0   0.0       5.3        0.0     0.0        21.1   21.1
  ramp-up: before a worker's first backward
  tail: after its last F, when only backwards and W are left
  transfer: the input of the worker's next op was on its way
  memory: an F was ready but memory was full
  dependency: another stage had not yet produced the input of the worker's next op
  slack: the stage was done with this iteration and waited for the next
  during 100.0 % of the ramp-up of stage 0 an F was ready but memory was full
"""


def test_words() -> None:
    assert explanation_text(explain(hand_made(ONE_PIPELINE), "none")) == WORDS


def test_json_has_the_same_facts() -> None:
    found = json.loads(explanation_document(explain(hand_made(ONE_PIPELINE), "none")))
    assert (found["period"], found["makespan"], found["lower_bound"], found["one_f_one_b"]) == (
        19,
        18,
        15,
        17,
    )
    assert found["bottleneck"] == {
        "stage": 0,
        "alive": 1,
        "microbatches_per_worker": [3, 3],
        "busy": 0.526316,
        "window": 19,
    }
    assert sum(part["time"] for part in found["bound"]["parts"]) == found["bound"]["period"] == 15
    assert found["critical_path"]["causes"] == {
        "compute_on_bottleneck": 7,
        "compute_elsewhere": 7,
        "transfer": 4,
        "finish": 1,
        "nothing": 0,
    }
    assert found["critical_path"]["steps"][2] == {
        "kind": "compute",
        "stage": 1,
        "worker": [0, 1],
        "ops": 5,
        "first": "F0.0",
        "last": "I0.1",
        "iteration": 0,
        "start": 2,
        "end": 7,
    }
    first, second = found["stage_times"]
    assert first["time"]["memory"] == 1
    assert first["ramp_up_with_full_memory"] == 3
    assert second["share"]["dependency"] == round(4 / 19, 6)
    assert sum(second["time"].values()) == 19
    assert found["what_if"] == {"mode": "none", "reference": 19, "outcomes": []}


def test_a_plan_that_met_its_bound_or_ran_out_of_time() -> None:
    schedule = hand_made(ONE_PIPELINE)
    met = replace(schedule, claims=Claims(18 * SLOT, 19 * SLOT, 19 * SLOT, "load of stage 0"))
    assert "period 19 slots, optimal: no plan is faster; makespan" in explanation_text(explain(met, "none"))
    cut = replace(schedule, claims=replace(schedule.claims, cut_short=True))
    assert "than 15 slots, cut short by the time limit;" in explanation_text(explain(cut, "none"))


def test_a_chain_that_began_before_the_window() -> None:
    assert "\n  stages hold each other up: the chain began before the window of stage 1 opened\n" in (
        explanation_text(explain(hand_made(TWO_WINDOWS), "none"))
    )


def test_a_micro_batch_on_its_way_is_one_line() -> None:
    job = replace(unit_job(6, 1, 2), transfer=(SLOT // 2,) * 5)
    lines = explanation_text(explain(replay(plan_failed(job, ())), "none")).splitlines()
    (way_down,) = (line for line in lines if line.startswith("  F0.0 from 0:0 to 0:4"))
    assert way_down == "  F0.0 from 0:0 to 0:4 (5 ops, 5 slots; transfers 2 slots)"
