"""`--format html` of show, plan and diff: what the pages hold, and what cannot be drawn."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.cli import pages

Recyclec = Callable[..., tuple[int, str, str]]


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def failures(text: str) -> list[int]:
    return [plan["failures"] for plan in data_of(text)["sides"][0]["plans"]]


def test_a_page_has_every_number_of_failures(small_bundle: str, recyclec: Recyclec) -> None:
    code, page, words = recyclec("show", small_bundle, "--failures", "1", "--format", "html")
    assert (code, words, failures(page), data_of(page)["first"]) == (0, "", [0, 1, 2], 1)
    _, named, _ = recyclec("show", small_bundle, "--failed", "0:1", "--format", "html")
    assert [plan["failed"] for plan in data_of(named)["sides"][0]["plans"]][1] == [[0, 1]]


def test_of_a_very_large_bundle_those_that_fit(
    small_bundle: str, recyclec: Recyclec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_OPS", 100)
    _, page, _ = recyclec("show", small_bundle, "--failures", "2", "--format", "html")
    assert failures(page) == [1, 2] and data_of(page)["first"] == 1
    assert data_of(page)["note"].startswith("It has the plans for 1 to 2 of up to 2 failures")


def test_of_a_job_in_layers_the_fastest_cuts_or_its_own(layered_bundle: str, recyclec: Recyclec) -> None:
    _, fastest, _ = recyclec("--quiet", "show", layered_bundle, "--format", "html")
    _, own, _ = recyclec("show", layered_bundle, "--cut", "own", "--format", "html")
    assert failures(own) == failures(fastest)
    periods = [[plan["period"] for plan in data_of(text)["sides"][0]["plans"]] for text in (fastest, own)]
    assert all(one <= other for one, other in zip(*periods, strict=True)) and periods[0] != periods[1]
    assert not any(plan["recut"] for plan in data_of(own)["sides"][0]["plans"])
    assert any(plan["recut"] for plan in data_of(fastest)["sides"][0]["plans"])


def test_one_plan_alone(small_job: str, recyclec: Recyclec) -> None:
    code, page, _ = recyclec("plan", small_job, "--failed", "0:0,1:1", "--format", "html")
    assert (code, failures(page)) == (0, [2])
    assert data_of(page)["sides"][0]["plans"][0]["failed"] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("form", ["text", "json", "html"])
def test_differences_into_a_file(small_bundle: str, recyclec: Recyclec, tmp_path: Path, form: str) -> None:
    path = tmp_path / "out"
    code, data, words = recyclec("diff", small_bundle, small_bundle, "--format", form, "-o", str(path))
    assert (code, data, words) == (0, "", "")
    assert path.read_text() == recyclec("diff", small_bundle, small_bundle, "--format", form)[1]


def test_formats_that_do_not_go_together(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("diff", small_bundle, small_bundle, "--json", "--format", "html")
    assert (code, data) == (2, "")
    assert words == "recyclec: error: --json is --format json: leave out one of it and --format html\n"
    assert recyclec("diff", small_bundle, small_bundle, "--json", "--format", "json")[0] == 0


def test_output_over_an_input(small_bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    copy = tmp_path / "copy.plan"
    copy.write_bytes(Path(small_bundle).read_bytes())
    code, _, words = recyclec("diff", small_bundle, str(copy), "--format", "html", "-o", str(copy))
    assert code != 0 and "the input" in words
    assert copy.read_bytes() == Path(small_bundle).read_bytes()


def test_files_are_named_without_folders_unless_they_are_namesakes(
    small_bundle: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    other = tmp_path / "other.plan"
    other.write_bytes(Path(small_bundle).read_bytes())
    _, page, _ = recyclec("diff", small_bundle, str(other), "--format", "html")
    assert [side["name"] for side in data_of(page)["sides"]] == ["before: small.plan", "after: other.plan"]
    _, page, _ = recyclec("diff", small_bundle, small_bundle, "--format", "html")
    assert data_of(page)["sides"][1]["name"] == f"after: {small_bundle}"


def test_nothing_in_common(small_bundle: str, small_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    none, other = str(tmp_path / "none.plan"), str(tmp_path / "ms.plan")
    job = tmp_path / "ms.job"
    job.write_text(Path(small_job).read_text().replace("forward = 1", "unit = ms  forward = 1"))
    recyclec("compile", str(job), "-o", other, "--failures", "0", "--jobs", "1")
    code, data, words = recyclec("diff", small_bundle, other, "--format", "html")
    assert (code, data) == (1, "")
    assert words.endswith("cannot be drawn on one time axis: one counts in slots, the other in ms\n")
    recyclec("plan", small_job, "--failed", "0:0,0:1,1:1", "-o", none)
    code, data, words = recyclec("diff", small_bundle, none, "--format", "html")
    assert (code, data) == (1, "")
    assert words.endswith("have no number of failures in common: nothing to draw\n")
