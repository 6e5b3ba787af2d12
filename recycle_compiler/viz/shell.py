"""Pages that open from disk: a bundled script and style from `web/`, and data that is put beside them.

`make web` writes the files in `pages/`. Data goes in as JSON that holds no character with a meaning in HTML,
so a name is text whatever it contains. A page loads nothing and allows no script but its own.
"""

import json
from html import escape
from importlib.resources import files
from typing import Any, Literal

from recycle_compiler.version import __version__

Page = Literal["plan", "fleet", "play"]
MADE_BY = f"recyclec {__version__}"
_TITLE, _DATA = "@@TITLE@@", "@@DATA@@"
_IN_HTML = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def whole_page(name: Page, title: str, data: dict[str, Any]) -> str:
    """The page of this name with its data."""
    source = files("recycle_compiler.viz").joinpath("pages", f"{name}.html").read_text(encoding="utf-8")
    before, _, rest = source.partition(_TITLE)
    between, _, after = rest.partition(_DATA)
    return "".join((before, escape(title), between, embedded(data), after))


def embedded(data: Any) -> str:
    """JSON for a script element that is not run; `<`, `>` and `&` are written by their numbers."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_IN_HTML)
