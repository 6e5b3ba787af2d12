"""Charts: well-formed, with every value in them, and safe whatever the names are."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.viz.chart import Bars, LineChart, Point

NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=9)
POINTS = st.lists(st.builds(Point, st.floats(1, 1e6), st.floats(0, 1e6), NAMES), min_size=1, max_size=6)


@given(st.dictionaries(NAMES, POINTS, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_lines_are_well_formed(series: dict[str, list[Point]], logarithmic: bool, from_zero: bool) -> None:
    text = LineChart("<t>", "x & y", "y", series, logarithmic, from_zero).svg()
    found = ElementTree.fromstring(text)
    circles = [node for node in found.iter() if node.tag.endswith("circle")]
    assert len(circles) == sum(len(points) for points in series.values())


def test_bars_have_a_piece_for_each_value() -> None:
    text = Bars(
        "year", (("useful", "#000"), ("down", "#111")), [("ours", [3, 1], "x"), ("<b>", [0, 2], "")]
    ).svg()
    found = ElementTree.fromstring(text)
    titles = [node.text for node in found.iter() if node.tag.endswith("title")]
    assert titles == ["ours, useful: 3", "ours, down: 1", "<b>, down: 2"]


def test_nothing_to_draw() -> None:
    assert LineChart("", "", "", {}).svg() == ""
