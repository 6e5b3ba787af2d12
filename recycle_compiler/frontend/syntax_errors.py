"""Words for text that the grammar refuses, found by example.

An error gets the words of the example that went wrong in the same parser state, best at the same
token. Where examples meet in one state the first one stands, so the most specific come first.
"""

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class ErrorWords:
    """Message about one kind of malformed text."""

    code: str
    message: str
    """`{found}` stands for the text at the error."""
    hint: str


def _examples(beginnings: tuple[str, ...], *bad_tokens: str) -> tuple[str, ...]:
    """Malformed texts: each good beginning, followed by each token that may not stand there."""
    return tuple(f"{beginning} {token}" for beginning, token in product(beginnings, bad_tokens))


_JOB_DONE = ("job a { }", "job a { b }")
_BLOCK_DONE = ("job a { b { }", "job a { b { c }", "job a { device b { }")
_SETTING_DONE = (
    "job a { b = c",
    "job a { b = 1",
    "job a { b = 1 s",
    "job a { b = s",
    "job a { b = []",
    "job a { b = [1]",
    "job a { b = [1,]",
    'job a { b = "c"',
)
_ENTRY_DONE = (*_BLOCK_DONE, *_SETTING_DONE, 'job a { b from "c"', "job a { device b")
_IN_BLOCK = ("job a {", "job a { b {", "job a { b { c = d }", *_ENTRY_DONE)
_VALUE_DONE_IN_LIST = (
    "job a { b = [1",
    "job a { b = [1 s",
    "job a { b = [1 c",
    "job a { b = [c",
    "job a { b = [1, 2",
    "job a { b = [1, c",
    "job a { b = [2 * 1",
    "job a { b = [2 * c",
)

NO_VALUE = ErrorWords("missing-value", "{found} has no value", "write a number, a word or a list after `=`")
"""`{found}` is the setting, not what follows it."""

MALFORMED: tuple[tuple[ErrorWords, tuple[str, ...]], ...] = (
    (
        ErrorWords(
            "trailing-text",
            "nothing may follow the job, found {found}",
            "remove it, or a `}` too many before it",
        ),
        _examples(_JOB_DONE, "b", "}", "1", "=", '"b"', "{", "[", "]", ","),
    ),
    (
        ErrorWords(
            "trailing-text", "a file holds one job, found a second one", "put every job in a file of its own"
        ),
        _examples(_JOB_DONE, "job"),
    ),
    (
        ErrorWords(
            "no-job", "a job file starts with `job NAME {`, found {found}", "write `job my-job { ... }`"
        ),
        ("parallel { }", "{", "}", "1", "= 1", '"a"'),
    ),
    (
        ErrorWords(
            "no-name",
            "a job needs a name, found {found}",
            "write `job my-job { ... }`; a name starts with a letter",
        ),
        _examples(("job",), "{", "1", "=", '"a"', "}"),
    ),
    (
        ErrorWords(
            "missing-brace", "a job's name is followed by `{`, found {found}", "write `job my-job { ... }`"
        ),
        _examples(("job a",), "b", "}", "=", "1"),
    ),
    (
        ErrorWords(
            "missing-name", "`model` is followed by its kind, found {found}", "write `model gpt { ... }`"
        ),
        _examples(("job a { model",), "=", "{", "}", "1", '"b"'),
    ),
    (
        ErrorWords(
            "missing-brace",
            "the settings of a model stand in braces, found {found}",
            "write `model gpt { ... }`",
        ),
        _examples(("job a { model b",), "}", "c", "=", "1"),
    ),
    (
        ErrorWords("missing-name", "`device` is followed by its name, found {found}", "write `device a100`"),
        _examples(("job a { device",), "=", "{", "}", "1", '"b"'),
    ),
    (
        ErrorWords(
            "missing-value",
            "`from` is followed by a file name in quotes, found {found}",
            'write `from "file.json"`',
        ),
        _examples(("job a { b from",), "c", "}", "=", "1", "{"),
    ),
    (
        ErrorWords(
            "missing-equals",
            "a setting and its value need `=` between them, found {found}",
            "write `name = value`",
        ),
        _examples(("job a { b",), "1", '"c"', "["),
    ),
    # A second `=` makes the word before it a setting of its own.
    (NO_VALUE, (*_examples(("job a { b =",), "}", "="), "job a { b = c =")),
    (
        ErrorWords(
            "missing-value",
            "a setting needs a value after `=`, found {found}",
            "write a number, a word or a list",
        ),
        _examples(("job a { b =",), "{", ",", "]"),
    ),
    (
        ErrorWords("bad-list", "a list holds numbers between commas, found {found}", "write `[4, 3, 2, 1]`"),
        _examples(("job a { b = [", "job a { b = [1,"), ",", "}", "=", "{", "[", '"c"'),
    ),
    (
        ErrorWords(
            "bad-list", "`*` is followed by the value to repeat, found {found}", "write `[2 * 1.5, 3]`"
        ),
        _examples(("job a { b = [2 *",), ",", "]", "}", "=", "{", "[", '"c"', "*"),
    ),
    (
        ErrorWords("bad-list", "a value is repeated in a list, found {found}", "write `[2 * 1.5, 3]`"),
        _examples((*_SETTING_DONE, *_VALUE_DONE_IN_LIST[1:4], "job a { b = [2 * 1", "job a { b = ["), "*"),
    ),
    (
        ErrorWords("bad-list", "a list needs `,` between its values, found {found}", "write `[4, 3, 2, 1]`"),
        _examples(_VALUE_DONE_IN_LIST, "2", "[", '"d"')
        + _examples(("job a { b = [1 s", "job a { b = [1 c", "job a { b = [c"), "d", "s"),
    ),
    (
        ErrorWords("bad-list", "the list is not closed, found {found}", "end the list with `]`"),
        _examples(_VALUE_DONE_IN_LIST, "}", "=", "{"),
    ),
    (
        ErrorWords(
            "stray-comma", "settings stand side by side without commas, found {found}", "remove the comma"
        ),
        _examples((*_IN_BLOCK, "job a { b"), ","),
    ),
    (
        ErrorWords(
            "missing-name", "a setting has one name and one value, found {found}", "write `name = value`"
        ),
        _examples(tuple(one for one in _IN_BLOCK if one != "job a { b = c"), "="),
    ),
    (
        ErrorWords("missing-name", "a block needs a name before `{`, found {found}", "write `name { ... }`"),
        _examples(_IN_BLOCK[:-1], "{"),
    ),
    (
        ErrorWords(
            "missing-name", "expected the name of a block or a setting, found {found}", "write `name = value`"
        ),
        _examples(_IN_BLOCK, "1", '"b"', "[", "]") + _examples(("job a { b",), "]"),
    ),
)

ANYTHING = ErrorWords(
    "syntax", "this cannot stand here: {found}", "a job is made of blocks `name { key = value ... }`"
)
UNCLOSED = ErrorWords("unclosed", "{found} is not closed", "add a `}` where it ends")
"""For a file that ends inside a block."""
BAD_NAME = ErrorWords(
    "bad-name",
    "a job's name is one word, found {found}",
    "it starts with a letter and is made of letters, digits, `_`, `-` and `.`",
)

_CHARACTERS = {
    '"': ErrorWords("unclosed-string", "the text is not closed on its line", 'end it with `"`'),
    "'": ErrorWords("bad-character", "text stands in double quotes, found `'`", 'write `"..."`'),
    ":": ErrorWords(
        "missing-equals", "a setting and its value need `=` between them, found `:`", "write `name = value`"
    ),
    ";": ErrorWords("bad-character", "settings stand side by side without `;`", "remove it"),
    "/": ErrorWords("bad-character", "a comment starts with `#`, found `/`", "write `# comment`"),
    "(": ErrorWords("bad-character", "a list stands in brackets, found `(`", "write `[4, 3, 2, 1]`"),
    ".": ErrorWords("bad-character", "a number starts and ends with a digit, found `.`", "write `0.5`"),
    "-": ErrorWords("bad-character", "`-` stands right before a digit, or inside a name", "write `-1`"),
    "\u00b5": ErrorWords("unknown-unit", "unknown unit, found `\u00b5`", "microseconds are written `us`"),
    "\u03bc": ErrorWords("unknown-unit", "unknown unit, found `\u03bc`", "microseconds are written `us`"),
}
_ANY_CHARACTER = ErrorWords(
    "bad-character", "unexpected character {found}", "names are made of letters, digits, `_`, `-` and `.`"
)
_SPOILS_LINE = frozenset("\"'/")


def words_for_character(character: str) -> ErrorWords:
    """Message for a character that begins nothing in this language."""
    return _CHARACTERS.get(character, _ANY_CHARACTER)


def spoils_line(character: str) -> bool:
    """True if what follows on the line is no job text either."""
    return character in _SPOILS_LINE
