"""A resolved job as text."""

import pytest
from hypothesis import given

from recycle_compiler.ir.job import TextError, parse_job, print_job
from recycle_compiler.ir.target import Target
from tests.support.jobs import figure3, small_targets


@given(small_targets())
def test_reads_back(target: Target) -> None:
    assert parse_job(print_job(target.job).splitlines()) == target.job


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("forward 1000 1000 1000 1000", "forward 1000 1000"),
        ("forward 1000 1000 1000 1000", "forward 0 1000 1000 1000"),
        ("forward 1000 1000 1000 1000", "forward x 1000 1000 1000"),
        ("shape stages 4", "shape stages 3"),
        ("units slot count", "units furlong count"),
        ("units slot count", "units slot"),
        ("techniques adaptive", "techniques magic"),
        ("failures 0", "failures 99"),
        ("failures 0", ""),
        ("failures 0", "failures 0\nfailures 0"),
        ("solver time_limit_ns", "solver hurry"),
    ],
)
def test_refuses_what_is_not_a_job(old: str, new: str) -> None:
    text = print_job(figure3(4))
    assert old in text
    with pytest.raises(TextError):
        parse_job(text.replace(old, new).splitlines())
