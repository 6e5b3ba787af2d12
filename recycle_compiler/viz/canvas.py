"""Lines of characters with a style each, printed plain or in colour."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby


@dataclass(slots=True)
class Line:
    """One line that is drawn on from left to right; styles are names that `rich` knows."""

    characters: list[str] = field(default_factory=list[str])
    styles: list[str] = field(default_factory=list[str])

    def put(self, column: int, text: str, style: str = "") -> None:
        """Write text at a column, over what is there."""
        missing = column + len(text) - len(self.characters)
        if missing > 0:
            self.characters += [" "] * missing
            self.styles += [""] * missing
        self.characters[column : column + len(text)] = text
        self.styles[column : column + len(text)] = [style] * len(text)

    def is_free(self, column: int, filler: str) -> bool:
        """Whether nothing but filler stands at this column."""
        return column >= len(self.characters) or self.characters[column] in (" ", filler)

    def runs(self) -> Iterable[tuple[str, str]]:
        """Stretches of one style: (text, style)."""
        marks = zip(self.characters, self.styles, strict=True)
        for style, run in groupby(marks, key=lambda mark: mark[1]):
            yield "".join(character for character, _ in run), style

    def __str__(self) -> str:
        return "".join(self.characters).rstrip()


def line(text: str, style: str = "") -> Line:
    """A line that says one thing."""
    result = Line()
    result.put(0, text, style)
    return result


def render(lines: Sequence[Line], color: bool) -> str:
    """All lines as text, with escape codes when colour is wanted."""
    if not color:
        return "".join(f"{row}\n" for row in lines)
    # Only a terminal pays for loading rich.
    from rich.console import Console
    from rich.text import Text

    sink = StringIO()
    console = Console(
        file=sink, force_terminal=True, color_system="standard", width=10_000, highlight=False, no_color=False
    )
    for row in lines:
        console.print(Text.assemble(*row.runs()), soft_wrap=True)
    return sink.getvalue()
