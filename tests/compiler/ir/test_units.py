"""Numbers as users read them."""

from dataclasses import replace

import pytest

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import in_unit, memory_text, percent, plural, time_text


@pytest.mark.parametrize(("ticks", "text"), [(0, "0"), (29_000, "29"), (1_250, "1.25"), (100_000, "100")])
def test_times(tiny: Schedule, ticks: int, text: str) -> None:
    assert time_text(tiny.job, ticks) == text


def test_whole_times_are_integers(tiny: Schedule) -> None:
    assert (repr(in_unit(tiny.job, 2_000)), repr(in_unit(tiny.job, 2_500))) == ("2", "2.5")


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (96 << 20, "96 MiB"), (3 << 39, "1.5 TiB"), (5 << 50, "5120 TiB")],
)
def test_bytes(tiny: Schedule, amount: int, text: str) -> None:
    assert memory_text(replace(tiny.job, memory_unit="byte"), amount) == text


def test_activations(tiny: Schedule) -> None:
    assert memory_text(tiny.job, 3_500) == "3.5"


def test_words() -> None:
    assert [plural(1, "stage"), plural(0, "stage"), plural(2, "micro-batch")] == [
        "1 stage",
        "0 stages",
        "2 micro-batches",
    ]
    assert [percent(0.0), percent(0.0001), percent(0.0625)] == ["0.0 %", "under 0.1 %", "6.2 %"]
