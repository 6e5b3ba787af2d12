"""docs/security.md names the tests that hold its claims, and they are there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_test_that_the_page_names_is_there() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named: list[Path] = []
    for line in text.splitlines():
        folder = ROOT
        for name in re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", line):
            # A name alone is in the folder of the one before it.
            path = ROOT / name if name.startswith("tests/") else folder / name
            folder = path.parent
            named.append(path)
    assert len(named) > 20
    assert [path for path in named if not path.is_file()] == []
