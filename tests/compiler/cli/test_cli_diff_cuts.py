"""`recyclec diff` of bundles with plans under other cuts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recycle_compiler.backends.bundle import read_streams, write_bundle
from recycle_compiler.cli.main import main
from recycle_compiler.ir.streams import Streams
from recycle_runtime.plan.bundle import Bundle
from tests.support.layered_text import LAYERED

Recyclec = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def heavier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The job with one layer that takes twice as long: other cuts are the fastest."""
    job = tmp_path_factory.mktemp("heavier") / "heavier.job"
    job.write_text(LAYERED.replace("[1, 1, 1, 1, 1, 3]", "[1, 1, 1, 1, 2, 3]"))
    plan = str(job.with_suffix(".plan"))
    assert main(["--quiet", "compile", str(job), "-o", plan, "--jobs", "1", "--groups", "off"]) == 0
    return plan


def plans_of(bundle: Bundle) -> list[Streams]:
    return [read_streams(bundle, plan) for plan in range(len(bundle.plans))]


def test_a_bundle_does_not_differ_from_itself(layered_bundle: str, recyclec: Recyclec) -> None:
    code, data, _ = recyclec("diff", layered_bundle, layered_bundle)
    assert (code, data.splitlines()) == (
        0,
        [
            "plan for 0 failures: same",
            "plan for 1 failure: same",
            "plan for 2 failures: same",
            "plan under 2x2,2x2,2x4: same",
            "plan under 2x1,2x1,2x3: same",
            "plan under 5x4,1x2: same",
            "plan under 5x3,1x1: same",
        ],
    )


def test_which_cut_became_which(layered_bundle: str, heavier: str, recyclec: Recyclec) -> None:
    code, data, _ = recyclec("diff", layered_bundle, heavier)
    lines = [line for line in data.splitlines() if not line.startswith("    ")]
    assert code == 1
    assert [line for line in lines if not line.startswith("  ")] == [
        "plan for 0 failures: different",
        "plan for 1 failure: different",
        "plan for 2 failures: different",
        f"plans under 2x2,2x2,2x4: only in {layered_bundle}",
        f"plans under 5x4,1x2: only in {layered_bundle}",
        f"plans under 3x3,2x2,1x2: only in {heavier}",
        f"plans under 6x8: only in {heavier}",
        "fastest cut for 0 failures: 2x2,2x2,2x4 50 slots -> 6x8 60 slots; workers fetch 32 layers",
        "fastest cut for 1 failure: 3x3,3x4 (own) 63 slots -> 3x3,2x2,1x2 74 slots; no worker needs layers "
        "that it does not hold",
        "fastest cut for 2 failures: 5x4,1x2 73 slots -> 3x2,3x4 (own) 75 slots; workers fetch 6 layers",
    ]
    # Costs by layer are told as users write them.
    assert "  job layer_forward 5*1 3 -> 4*1 2 3" in lines
    assert "  bound over cuts 50 -> 60 slots (+20.0 %)" in lines


def test_the_same_as_json(layered_bundle: str, heavier: str, recyclec: Recyclec) -> None:
    code, data, _ = recyclec("diff", layered_bundle, heavier, "--json")
    found = json.loads(data)
    assert (code, found["same"], found["plans_under_other_cuts"]) == (1, False, [])
    assert found["only_cuts_before"] == ["2x2,2x2,2x4", "5x4,1x2"]
    assert found["only_cuts_after"] == ["3x3,2x2,1x2", "6x8"]
    assert found["fastest_cuts"][2] == {
        "failures": 2,
        "before": {"layout": "5x4,1x2", "own_cut": False, "period": 73},
        "after": {"layout": "3x2,3x4", "own_cut": True, "period": 75},
        "layers_moved": 6,
    }
    assert found["plans"][0]["job"]["layer_forward"] == [[1, 1, 1, 1, 1, 3], [1, 1, 1, 1, 2, 3]]


def test_a_difference_under_the_same_cut(layered_bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    """Only what a plan under another cut claims differs."""
    bundle = Bundle.read(layered_bundle)
    recuts = [plans_of(recut) for recut in bundle.recuts]
    recuts[1][0] = replace(recuts[1][0], claims=replace(recuts[1][0].claims, lower_bound=72_000))
    other = tmp_path / "other.plan"
    write_bundle(other, source=bundle.job_source, plans=plans_of(bundle), recuts=recuts)
    code, data, _ = recyclec("diff", layered_bundle, str(other))
    assert code == 1
    assert (
        "plan under 5x4,1x2: different\n"
        "  lower bound  73 -> 72 slots (-1.4 %)\n"
        "  status       optimal -> bounded\n"
    ) in data
    assert data.count("different") == 1
    code, data, _ = recyclec("diff", layered_bundle, str(other), "--json")
    found = json.loads(data)
    assert (code, found["same"], found["fastest_cuts"]) == (1, False, [])
    assert [(one["layout"], one["same"]) for one in found["plans_under_other_cuts"]] == [
        ("2x2,2x2,2x4", True),
        ("2x2,2x2,2x4", True),
        ("5x4,1x2", False),
        ("5x4,1x2", True),
    ]


def test_bundles_without_other_cuts_have_no_word_of_them(small_bundle: str, recyclec: Recyclec) -> None:
    _, data, _ = recyclec("diff", small_bundle, small_bundle, "--json")
    assert list(json.loads(data)) == ["same", "only_before", "only_after", "plans"]


def test_texts_under_another_cut(layered_bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    texts: list[str] = []
    for number in ("0", "1"):
        _, data, _ = recyclec("show", layered_bundle, "--cut", number, "--format", "schedule")
        texts.append(str(tmp_path / f"{number}.txt"))
        Path(texts[-1]).write_text(data)
    assert recyclec("diff", texts[0], texts[0])[:2] == (0, "plan under 2x2,2x2,2x4: same\n")
    code, data, _ = recyclec("diff", *texts)
    assert code == 1
    assert data.startswith("plan under 2x2,2x2,2x4 -> plan under 5x4,1x2: different\n")
    assert "  job cut      2 2 2 -> 5 1\n" in data
