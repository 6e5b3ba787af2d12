"""The committed pages equal their sources in web/; `make web` bundles them."""

import hashlib
import re
from pathlib import Path

import pytest

from recycle_compiler.ir.ops import OpKind
from recycle_compiler.viz.plan_page import LETTERS

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "web"
FOLDERS = (ROOT / "recycle_compiler" / "viz" / "pages", ROOT / "runtime" / "recycle_runtime" / "live_page")
PAGES = sorted((path for folder in FOLDERS for path in folder.glob("*.html")), key=lambda path: path.stem)


def digest() -> str:
    """As web/build.mjs computes it."""
    found = [path.relative_to(WEB).as_posix() for path in (WEB / "src").rglob("*") if path.is_file()]
    whole = hashlib.sha256()
    for name in sorted([*found, "build.mjs", "package.json", "package-lock.json"]):
        whole.update(f"{name}\n".encode() + (WEB / name).read_bytes() + b"\n")
    return whole.hexdigest()


def test_there_is_a_bundle_of_every_page() -> None:
    assert [path.stem for path in PAGES] == sorted(path.parent.name for path in WEB.glob("src/*/main.ts"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_bundles_are_not_stale(page: Path) -> None:
    found = re.search(r'<meta name="sources" content="(\w+)">', page.read_text(encoding="utf-8"))
    assert found is not None and found[1] == digest(), "the sources in web/ have changed: run `make web`"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_allow_their_own_script_and_no_other(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    links = text.replace("http://www.w3.org/2000/svg", "").replace('href="data:,"', "")
    assert not re.search(r"https?:|src=|href=|@import|url\(", links)


def test_pages_know_every_kind_of_op() -> None:
    found = re.search(r'export const KINDS = "(\w+)"', (WEB / "src" / "plan" / "model.ts").read_text())
    assert found is not None and found[1] == "".join(LETTERS[kind.name] for kind in OpKind)
