"""`recyclec explain` of a job in layers: why this cut, and what one worker more would buy."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Recyclec = Callable[..., tuple[int, str, str]]


def paragraph(data: str, first: str) -> str:
    return next(text for text in data.split("\n\n") if text.startswith(first))


def test_why_another_cut(layered_bundle: str, recyclec: Recyclec) -> None:
    """Two workers share 16 micro-batches of two layers: 48 slots, and 2 for the optimizer."""
    code, data, _ = recyclec("explain", layered_bundle, "--what-if", "none")
    assert code == 0
    assert data.startswith(
        "layered: 6 layers in 3 stages on 8 workers, another cut than the job starts with; 16 micro-batches\n"
        "layers x workers of each stage: 2x2 2x2 2x4\n"
        "period 50 slots, optimal: no plan with every layer on 2 or more is faster; makespan 54 slots\n"
        # Of the job as it starts, not of this cut.
        "fault-free 1F1B takes 72 slots: this plan runs at 1.440x its speed\n"
    )
    assert paragraph(data, "bottleneck").splitlines()[1].startswith("  2 workers, 8 micro-batches on each, ")
    assert re.search(r"  0:0 F\d+\.\.W\d+ \(24 ops, 48 slots\)\n", paragraph(data, "critical path"))
    assert paragraph(data, "why this cut") == (
        "why this cut: 2x2 2x2 2x4 (layers x workers of each stage)\n"
        "  stage 0 binds: layers 0 to 1 on 2 workers\n"
        "  no plan for 8 workers with every layer on 2 or more, under one cut, is faster than 50 slots, "
        "which this plan takes\n"
        "  the job's own cut, 3x4 3x4, takes 63 slots with as many workers: 20.6 % slower\n"
        "  no layer or worker moved over a border would lower the bound of 50 slots; those that cost least\n"
        "    a layer from stage 1 to stage 2: 63 slots\n"
        "    a worker from stage 2 to stage 1: 74 slots\n"
        "    a layer from stage 0 to stage 1: 75 slots\n"
        "    a layer from stage 1 to stage 0: 75 slots\n"
        "    and 1 more, up to 75 slots\n"
        "  one worker more would buy nothing (bound 50 slots)\n"
        "    under this cut nothing, on whichever stage"
    )


def test_what_the_own_cut_lacks(layered_bundle: str, recyclec: Recyclec) -> None:
    _, data, _ = recyclec("explain", layered_bundle, "--cut", "own", "--what-if", "none")
    told = paragraph(data, "why this cut").splitlines()
    assert told[2] == (
        "  no plan for 8 workers with every layer on 2 or more, under one cut, is faster than 50 slots; this "
        "plan takes 26.0 % longer"
    )
    assert told[3:5] == [
        "  one layer or worker moved over a border would lower the bound of 63 slots, and perhaps plans",
        "    a layer from stage 1 to stage 0: 52 slots",
    ]


def test_what_one_failure_fewer_takes(layered_bundle: str, recyclec: Recyclec) -> None:
    _, data, _ = recyclec("explain", layered_bundle, "--failures", "2", "--what-if", "none")
    told = paragraph(data, "why this cut").splitlines()
    assert told[-3:] == [
        "  one worker more would buy at most 15.9 % faster, with the best of all cuts with every layer on 2 "
        "or more (bound 63 slots)",
        "    under this cut most on stage 1 (bound 72 slots)",
        "  with 1 failure the bundle takes 63 slots, under 3x3 3x4",
    ]


def test_the_same_facts_as_json(layered_bundle: str, recyclec: Recyclec) -> None:
    _, data, _ = recyclec("explain", layered_bundle, "--failures", "2", "--json", "--what-if", "none")
    cut = json.loads(data)["cut"]
    moves = cut.pop("moves")
    assert cut == {
        "layout": "5x4,1x2",
        "own_cut": False,
        "workers": 6,
        "cut": [5, 1],
        "hosts": [4, 2],
        "binding": {"stage": 1, "layers": [5, 6]},
        "bound": 73,
        "bound_over_cuts": 73,
        "own": {"failures": 2, "period": 75, "layout": "3x2,3x4"},
        "one_failure_fewer": {"failures": 1, "period": 63, "layout": "3x3,3x4"},
        "one_worker_more": {"bound_over_cuts": 63, "stage": 1, "bound": 72},
    }
    # Stage 1 has one layer and only as many workers as must hold it.
    assert moves == [
        {"what": "layer", "from": 0, "to": 1, "layout": "4x4,2x2", "bound": 98},
        {"what": "worker", "from": 0, "to": 1, "layout": "5x3,1x3", "bound": 96},
    ]


def test_what_needs_several_pipelines_is_not_asked_of_another_cut(
    layered_bundle: str, recyclec: Recyclec
) -> None:
    _, data, _ = recyclec("explain", layered_bundle, "--json", "--what-if", "bounds")
    asked = [outcome["what"] for outcome in json.loads(data)["what_if"]["outcomes"]]
    assert asked and not any("adaptive" in what or "pipeline" in what for what in asked)


def explained(recyclec: Recyclec, job: str, layout: str, out: Path) -> dict[str, Any]:
    """JSON of a file with nothing but a plan under this layout."""
    assert recyclec("plan", job, "--layout", layout, "-o", str(out))[0] == 0
    code, data, _ = recyclec("explain", str(out), "--json", "--what-if", "none")
    assert code == 0
    return json.loads(data)


def test_a_file_of_one_plan_is_compared_with_the_job_of_its_source(
    layered_job: str, layered_bundle: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    _, data, _ = recyclec("explain", layered_bundle, "--json", "--what-if", "none")
    whole, alone = json.loads(data), explained(recyclec, layered_job, "2x2,2x2,2x4", tmp_path / "x.plan")
    assert alone["one_f_one_b"] == whole["one_f_one_b"] == 72
    assert alone["cut"] == {**whole["cut"], "own": None, "one_failure_fewer": None}


def test_who_has_fewer_holders_than_asked_for_is_compared_with_such(
    layered_job: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    """One worker on each stage of five: no other cut for as many has two holders of all layers."""
    alone = explained(recyclec, layered_job, "2x1,1x1,1x1,1x1,1x1", tmp_path / "x.plan")
    assert alone["cut"]["bound_over_cuts"] <= alone["cut"]["bound"] <= alone["period"]


def test_a_source_that_does_not_give_the_costs_of_the_plan(tmp_path: Path, recyclec: Recyclec) -> None:
    job, profile, out = tmp_path / "p.job", tmp_path / "p.json", str(tmp_path / "p.plan")
    layer = {"forward": 5, "backward_input": 5, "backward_weight": 5, "activation_bytes": 8}
    profile.write_text(json.dumps({"format": "recycle-profile", "version": 1, "layers": [layer] * 4}))
    job.write_text(
        'job p { parallel { pipeline = 1  data = 2 }  batch { microbatches = 4 }  profile from "p.json" }'
    )
    assert recyclec("plan", str(job), "--layout", "2x2,2x2", "-o", out)[0] == 0
    _, data, words = recyclec("explain", out, "--what-if", "none")
    assert "why this cut" in data and "fault-free 1F1B" in data and not words
    profile.write_text(profile.read_text().replace(": 5", ": 6"))
    for why in ("the text of its job gives other costs", "the text of its job cannot be read: "):
        code, data, words = recyclec("explain", out, "--what-if", "none")
        assert code == 0 and "why this cut" not in data and "fault-free 1F1B" not in data
        assert f"{out}: this plan is not compared with other cuts: {why}" in words
        profile.unlink(missing_ok=True)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_job_of_whole_stages_has_no_such_paragraph(
    small_bundle: str, recyclec: Recyclec, options: tuple[str, ...]
) -> None:
    _, data, _ = recyclec("explain", small_bundle, "--what-if", "none", *options)
    assert "why this cut" not in data and '"cut"' not in data


def test_too_few_workers_for_any_other_cut(tmp_path: Path, recyclec: Recyclec) -> None:
    """Three workers cannot hold every layer twice; the own cut goes on with one holder of some."""
    source, plan = tmp_path / "tight.job", str(tmp_path / "tight.plan")
    source.write_text(
        """job tight {
          parallel { pipeline = 2  data = 2 }
          batch { microbatches = 4 }
          layers {
            count = 4  forward = 1  backward_input = 1  backward_weight = 1
            resident = 1  activation = 1
          }
          memory { capacity = 5 }
          tolerate { failures = 2  redundancy = 2 }
        }
        """
    )
    assert recyclec("compile", str(source), "-o", plan, "--jobs", "1")[0] == 0
    for failures in range(3):
        code, data, _ = recyclec("explain", plan, "--failures", str(failures), "--what-if", "none")
        assert code == 0 and "no two groups" not in data
        assert "is faster than" in paragraph(data, "why this cut")
