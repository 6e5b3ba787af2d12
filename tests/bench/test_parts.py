"""Parts of benchmarks that are kept in a folder."""

from pathlib import Path

import pytest

from bench.parts import Parts


def test_a_part_that_was_made_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_PARTS", str(tmp_path))
    made: list[str] = []

    def make() -> list[float]:
        made.append("once")
        return [1.25, 2]

    assert Parts("cuts").value("some-job", make) == [1.25, 2]
    again = Parts("cuts")
    assert again.value("some-job", make) == [1.25, 2]
    assert made == ["once"]
    assert again.origin.startswith("job by job at revision ")


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_PARTS", raising=False)
    monkeypatch.chdir(tmp_path)
    parts = Parts("cuts")
    assert parts.value("some-job", lambda: 7) == 7
    assert parts.origin == "" and not list(tmp_path.iterdir())
