"""Figures and counts as written for people."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.page import page
from recycle_compiler.fleet.report import counted, figure, report_document, report_table, span_text
from tests.compiler.fleet.settings import made_fleet, read_fleet, report_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (87_600.0, "87,600"),
        (1000.4, "1,000"),
        (999.96, "1000"),
        (44.444, "44.44"),
        (6.0, "6"),
        (0.0001852, "0.0001852"),
        (7.938e-05, "0.00007938"),
        (2.5e-09, "under 0.000001"),
    ],
)
def test_figures_have_no_exponents(value: float, text: str) -> None:
    assert figure(value) == text


@given(st.floats(1e-6, 1e12))
def test_figures_are_within_a_thousandth(value: float) -> None:
    assert float(figure(value).replace(",", "")) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    ("hours", "text"), [(12.0, "12 h"), (0.5, "0.5 h"), (8 / 3600, "8 s"), (87_600.0, "87,600 h")]
)
def test_short_times_are_said_in_seconds(hours: float, text: str) -> None:
    assert span_text(hours) == text


def test_one_is_not_many() -> None:
    assert (counted(1, "worker"), counted(2048, "GPU")) == ("1 worker", "2,048 GPUs")


def test_a_slow_job_over_ten_years_is_still_readable() -> None:
    """A slot of hours makes throughputs tiny, on paper and on the page."""
    report = report_of(made_fleet("every 1y repair 6h", hours=87_600), "ours", "recycle", samples=1)
    for text in (report_table(report), page(report)):
        assert "e-0" not in text and "e+0" not in text
        assert "87,600 h" in text


def test_every_return_to_a_checkpoint_is_told() -> None:
    """Three workers of one stage fail at once: 41 s without steps, and half of an interval is done again."""
    report = report_of(read_fleet('{"at": 1050, "failed": ["0:1", "1:1", "2:1"]}', '{"at": 3000}'), "ours")
    (entry,) = report.outcomes[0].checkpoints_read
    assert entry.gpu_hours(report.gpus) == pytest.approx((entry.pause + 50) * 12 / 3600)
    said = "0:1, 1:1, 2:1 failed: no live worker has stage 1: starts from a checkpoint."
    assert said in report_table(report)
    assert [
        one["why"] for one in json.loads(report_document(report))["policies"]["ours"]["checkpoints_read"]
    ] == [said.removesuffix(".")]
