"""Text to syntax: every piece with its place, and reading goes on after a mistake."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend import syntax_errors
from recycle_compiler.frontend.format import one_line
from recycle_compiler.frontend.parse import parse_syntax
from recycle_compiler.frontend.syntax import Block, Listing, Name, Quantity, Quoted, SyntaxSetting

TOKENS = [
    "{",
    "}",
    "=",
    "1",
    '"x"',
    "[",
    "]",
    ",",
    "job",
    "from",
    "model",
    "device",
    "s",
    "%",
    "name",
    "-2.5",
    "*",
]


def entries(text: str) -> tuple[SyntaxSetting | Block | Name, ...]:
    parsed = parse_syntax(f"job a {{ {text} }}")
    assert parsed.diagnostics == ()
    assert parsed.job is not None
    return parsed.job.braces.entries


def value(text: str) -> object:
    (setting,) = entries(f"k = {text}")
    assert isinstance(setting, SyntaxSetting)
    return setting.value


def test_places_count_from_one() -> None:
    parsed = parse_syntax("# c\n job  a {\n b = 12 ms }")
    assert parsed.job is not None
    assert parsed.job.start == Span(2, 2, 5)
    assert parsed.job.name == Name("a", Span(2, 7, 8))
    (setting,) = parsed.job.braces.entries
    assert setting == SyntaxSetting(
        Name("b", Span(3, 2, 3)), Quantity("12", Name("ms", Span(3, 9, 11)), Span(3, 6, 11))
    )


@pytest.mark.parametrize(
    ("text", "digits", "unit"),
    [("4", "4", None), ("-1", "-1", None), ("0.50", "0.50", None), ("1%", "1", "%"), ("60s", "60", "s")]
    + [(f"7 {unit}", "7", unit) for unit in ("slot", "us", "ms", "s", "B", "KiB", "MiB", "GiB", "TiB", "%")],
)
def test_numbers_keep_their_spelling(text: str, digits: str, unit: str | None) -> None:
    number = value(text)
    assert isinstance(number, Quantity)
    assert (number.digits, number.unit and number.unit.text) == (digits, unit)


def test_a_unit_is_a_word_of_its_own() -> None:
    assert [entry.key.text for entry in entries("b = 60 seed = 0") if isinstance(entry, SyntaxSetting)] == [
        "b",
        "seed",
    ]
    assert [type(entry) for entry in entries("b = 60 sec")] == [SyntaxSetting, Name]


def test_lists_may_hold_units_words_and_a_last_comma() -> None:
    listing = value("[1, 2 MiB, unlimited, 3 wibble,]")
    assert isinstance(listing, Listing)
    assert list(map(one_line, listing.items)) == ["1", "2 MiB", "unlimited", "3 wibble"]
    assert value("[]") == Listing((), Span(1, 13, 14), Span(1, 14, 15))


def test_a_value_in_a_list_may_be_repeated() -> None:
    listing = value("[0.3, 28 * 1, 2*3 ms, 4 * unlimited]")
    assert isinstance(listing, Listing)
    assert list(map(one_line, listing.items)) == ["0.3", "28 * 1", "2 * 3 ms", "4 * unlimited"]
    assert listing.items[1].span == Span(1, 19, 25)


def test_blocks_in_all_their_forms() -> None:
    blocks = entries('p from "x.json" model gpt { } device a100 device b { c = 1 } techniques { }')
    assert [
        (
            block.head.text,
            block.variant and block.variant.text,
            block.file and block.file.text,
            bool(block.braces),
        )
        for block in blocks
        if isinstance(block, Block)
    ] == [
        ("p", None, "x.json", False),
        ("model", "gpt", None, True),
        ("device", "a100", None, False),
        ("device", "b", None, True),
        ("techniques", None, None, True),
    ]


def test_words_of_the_language_may_be_names_elsewhere() -> None:
    parsed = parse_syntax("job model { b = device c = job d = s }")
    assert parsed.diagnostics == ()
    assert parsed.job is not None
    assert parsed.job.name.text == "model"


def test_text_is_taken_as_it_is() -> None:
    assert value('"a # b \\"') == Quoted("a # b \\", Span(1, 13, 22))


@pytest.mark.parametrize(
    ("words", "example"), [(words, one) for words, examples in syntax_errors.MALFORMED for one in examples]
)
def test_every_malformed_example_gets_its_own_words(words: syntax_errors.ErrorWords, example: str) -> None:
    first = parse_syntax(example).diagnostics[0]
    assert (first.code, first.hint) == (words.code, words.hint)
    assert first.message.startswith(words.message.split("{found}")[0])


@given(st.lists(st.sampled_from(TOKENS), max_size=20), st.booleans())
def test_any_tokens_are_a_job_or_explained_in_specific_words(tokens: list[str], inside: bool) -> None:
    parsed = parse_syntax(" ".join(["job a {", *tokens] if inside else tokens))
    assert parsed.job is not None or parsed.diagnostics
    assert "syntax" not in [one.code for one in parsed.diagnostics]


@pytest.mark.parametrize("character", [*"\"':;/(.-?\u00b5\u03bc@", "\x00", "\u65e5", "\U0001f525"])
def test_a_strange_character_is_named(character: str) -> None:
    (first, *_) = parse_syntax(f"job a {{ b = 1 {character} }}").diagnostics
    assert first.span == Span(1, 15, 16)
    assert first.hint


def test_reading_goes_on_after_each_mistake() -> None:
    parsed = parse_syntax(
        "job a {\n b { c 1 }\n d { e = }\n f { g = [1 2] }\n h { = 3 }\n i { j = 1, k = 2 }\n}"
    )
    assert [one.span.line for one in parsed.diagnostics if one.span] == [2, 3, 4, 5, 6]
    assert parsed.job is not None
    assert [entry.head.text for entry in parsed.job.braces.entries if isinstance(entry, Block)] == list(
        "bdfhi"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("job a {", "a"),
        ("job a { b {", "b"),
        ("job a { b { c = 1 }", "a"),
        ("job a { b { c = [1", "b"),
        ("job a { b { c =", "b"),
    ],
)
def test_the_innermost_open_block_is_named(text: str, name: str) -> None:
    parsed = parse_syntax(text)
    assert [one.message for one in parsed.diagnostics] == [f"block `{name}` is not closed"]
    assert parsed.job is not None


@pytest.mark.parametrize(
    "text", ["? " * 50_000, "a{" * 20_000, "job a { b = " + "[" * 20_000, "job a {" + " = 1" * 10_000]
)
def test_a_hopeless_text_is_given_up(text: str) -> None:
    assert 1 <= len(parse_syntax(text).diagnostics) <= 2
