"""Event files hold the numbers of the run; without the package the option is refused."""

from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.cli.options.watching import check_pages, page_address
from recycle_runtime.cli.output import UsageError
from recycle_runtime.live_page import tensorboard
from recycle_runtime.live_page.tensorboard import TensorBoardLog
from recycle_runtime.options.run import WatchOptions
from recycle_runtime.protocol.messages.observers import JobEvent, Recovered
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled


def test_numbers_come_back_from_the_files(tmp_path: Path) -> None:
    reader: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    with TensorBoardLog(str(tmp_path)) as log:
        log.take(StepRow(0, 2.5, 0.1, 4, "0 0", learning_rate=0.01))
        log.take(StepSettled(0, 1.5, False))
        log.take(StepRow(1, float("nan"), 0.1, 4, "0 0"))
        log.take(Recovered(2, ("1:1 was killed",), 2, 0, 0.1, "0 1", 0.05, 0.02, 0.03, 0.1))
        log.take(JobEvent("1:1 is restarted"))
    found = reader.EventAccumulator(str(tmp_path)).Reload()
    assert [(row.step, row.value) for row in found.Scalars("train/loss")] == [(0, 2.5)]
    assert [row.value for row in found.Scalars("train/gradient_norm")] == [1.5]
    assert [row.step for row in found.Scalars("recovery/seconds")] == [2]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "has_tensorboard", lambda: False)
    with pytest.raises(UsageError, match=r"recyclec\[tensorboard\]"):
        check_pages(WatchOptions(tensorboard="logs"))


@pytest.mark.parametrize(
    ("text", "where"),
    [(None, None), ("0", ("127.0.0.1", 0)), ("8080", ("127.0.0.1", 8080)), ("0.0.0.0:80", ("0.0.0.0", 80))],
)
def test_where_the_page_is(text: str | None, where: tuple[str, int] | None) -> None:
    assert page_address(WatchOptions(page=text)) == where


@pytest.mark.parametrize("text", ["tiny.plan", "-1", "65536", "host", ":80", "\u0663"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match="--page must be a port"):
        page_address(WatchOptions(page=text))
