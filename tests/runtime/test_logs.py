"""Log lines: one per event, with the fields of the process, appended to a file or written to stderr."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from recycle_runtime import logs

LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[A-Z]+) host=(?P<host>\S+) "
    r"worker=(?P<worker>\S+) generation=(?P<generation>\S+) step=(?P<step>\S+) "
    r"(?P<logger>[\w.]+): (?P<text>.*)"
)


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    logs.forget_note()
    yield
    logs.forget_note()
    logs.configure()


def lines_of(path: Path) -> list[dict[str, str]]:
    found = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
    return [match.groupdict() for match in found if match is not None]


def test_a_line_has_the_fields_of_its_process(tmp_path: Path) -> None:
    logs.configure("debug", str(tmp_path / "log"))
    logger = logging.getLogger("recycle_runtime.worker")
    logger.debug("starts")
    logs.note(worker="1:2", generation=3)
    logs.note(step=17)
    logger.warning("slow by %d %%", 20)
    logger.info("failed", extra={"worker": "0:1"})
    rows = lines_of(tmp_path / "log")
    fields = [(row["level"], row["worker"], row["generation"], row["step"], row["text"]) for row in rows]
    assert fields == [
        ("DEBUG", "-", "-", "-", "starts"),
        ("WARNING", "1:2", "3", "17", "slow by 20 %"),
        ("INFO", "0:1", "3", "17", "failed"),
    ]
    assert {row["logger"] for row in rows} == {"recycle_runtime.worker"}


def test_a_traceback_stays_on_its_line(tmp_path: Path) -> None:
    logs.configure(None, str(tmp_path / "log"))
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("recycle_compiler").exception("broken")
    (row,) = lines_of(tmp_path / "log")
    assert row["text"].startswith("broken\\nTraceback") and row["text"].endswith("ValueError: two\\nlines")


def test_a_file_is_appended_to_and_has_info_by_default(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for words in ("first", "second"):
        logs.configure(None, str(path))
        logging.getLogger("recycle_compiler").info(words)
        logging.getLogger("recycle_compiler").debug("not this")
    assert [row["text"] for row in lines_of(path)] == ["first", "second"]


@pytest.mark.parametrize(
    ("level", "quiet", "shown"),
    [
        (None, False, ["w", "e"]),
        (None, True, ["e"]),
        ("info", True, ["i", "w", "e"]),
        ("error", False, ["e"]),
    ],
)
def test_levels_on_stderr(
    level: str | None, quiet: bool, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(level, quiet=quiet)
    logger = logging.getLogger("recycle_runtime")
    logger.info("i")
    logger.warning("w")
    logger.error("e")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line[-1] for line in captured.err.splitlines()] == shown


def test_children_get_the_same_settings() -> None:
    assert logs.LogSettings().options() == []
    assert logs.LogSettings("debug", "x.log").options() == ["--log-level", "debug", "--log-file", "x.log"]


def test_a_file_that_cannot_be_opened_changes_nothing(tmp_path: Path) -> None:
    before = logs.settings()
    with pytest.raises(FileNotFoundError):
        logs.configure(None, str(tmp_path / "no" / "log"))
    assert logs.settings() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_file_that_cannot_be_written_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk gave a traceback for every line."""
    logs.configure(None, "/dev/full")
    logger = logging.getLogger("recycle_runtime")
    logger.warning("one")
    logger.warning("two")
    said = "warning: cannot write /dev/full: no space left on device; the log has gaps\n"
    assert capsys.readouterr().err == said
    logs.configure(None)
