"""Text to syntax, with a place for everything; the only file that imports Lark.

A mistake does not end the parse: it is noted, mended in the likeliest way (a missing `=` is put in,
an odd token is left out), and reading goes on, so that one run shows all mistakes.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput

from recycle_compiler.diagnostics import Diagnostic, Span
from recycle_compiler.frontend import syntax_errors
from recycle_compiler.frontend.diagnostics import quote
from recycle_compiler.frontend.schema import BLOCKS
from recycle_compiler.frontend.syntax import (
    Block,
    Braces,
    Job,
    Listing,
    Name,
    Quantity,
    Quoted,
    Repeat,
    SyntaxSetting,
    Value,
)
from recycle_compiler.frontend.syntax_errors import ErrorWords

_PACKAGE = Path(__file__).resolve().parent.parent
_MISSING_BEFORE = {
    "NUMBER": ("EQUAL", "COMMA"),
    "STRING": ("EQUAL",),
    "LSQB": ("EQUAL",),
    "EQUAL": ("RSQB", "NAME"),
    "RSQB": ("NAME",),
    "NAME": ("COMMA", "LBRACE"),
    "RBRACE": ("RSQB", "NAME", "RSQB"),
}
"""Tokens most often forgotten before a token; an empty NAME stands for any key or value."""
_ONCE = frozenset({"trailing-text", "no-job"})
"""Mistakes that make the whole rest of the file look wrong."""
_HEAD = re.compile(r"(?:\s|#[^\n]*\n)*job[ \t]+(?P<name>[^{}#\n]*?)[ \t]*\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_MOST_MENDED = 100
"""After this many places that had to be mended the rest is not worth reading."""


def grammar_path(name: str) -> Path:
    """The path of a file of the grammar folder."""
    installed = _PACKAGE / "_grammar" / name
    return installed if installed.is_file() else _PACKAGE.parent / "grammar" / name


@dataclass(frozen=True, slots=True)
class Parsed:
    """Result of parsing: what could be read, and the mistakes on the way."""

    job: Job | None
    """None when too little was left to make a job of."""
    diagnostics: tuple[Diagnostic, ...]


def parse_syntax(source: str) -> Parsed:
    """Read a job file's text; never raises for bad text."""
    recovery = _Recovery(source)
    try:
        job = cast(Job, _parser().parse(recovery.with_good_name(), on_error=recovery.mend))
    except UnexpectedInput:
        job = None
    return Parsed(job, tuple(recovery.diagnostics))


@cache
def _parser() -> Any:
    text = grammar_path("job.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="contextual", transformer=_Builder())


class _Builder(Transformer[Token, Job]):
    """Makes a syntax value of each rule as soon as it is complete, so depth costs no recursion."""

    def start(self, children: list[Any]) -> Job:
        keyword, name, *braces = children
        return Job(_span(keyword), _name(name), self.braces(braces))

    def braces(self, children: list[Any]) -> Braces:
        opening, *entries, closing = children
        return Braces(_span(opening), tuple(entries), _span(closing))

    def setting(self, children: list[Any]) -> SyntaxSetting:
        key, value = children
        return SyntaxSetting(_name(key), value)

    def switch(self, children: list[Any]) -> Name:
        return _name(children[0])

    def block(self, children: list[Any]) -> Block:
        head, braces = children
        return Block(_name(head), None, None, braces)

    def file_block(self, children: list[Any]) -> Block:
        head, file = children
        return Block(_name(head), None, Quoted(file[1:-1], _span(file)), None)

    def variant_block(self, children: list[Any]) -> Block:
        head, variant, *braces = children
        return Block(_name(head), _name(variant), None, braces[0] if braces else None)

    def number(self, children: list[Any]) -> Quantity:
        digits, unit = children
        span = _span(digits)
        if unit is None:
            return Quantity(str(digits), None, span)
        if unit.line == span.line:
            span = Span(span.line, span.column, unit.end_column)
        return Quantity(str(digits), _name(unit), span)

    def repeat(self, children: list[Any]) -> Repeat:
        times, _, item = children
        return Repeat(Quantity(str(times), None, _span(times)), item)

    def word(self, children: list[Any]) -> Name:
        return _name(children[0])

    def text(self, children: list[Any]) -> Quoted:
        return Quoted(children[0][1:-1], _span(children[0]))

    def listing(self, children: list[Any]) -> Value:
        opening, *items, closing = children
        return Listing(tuple(item for item in items if item is not None), _span(opening), _span(closing))


def _span(token: Token) -> Span:
    line, column = token.line or 1, token.column or 1
    return Span(line, column, column + max(1, len(token)))


def _name(token: Token) -> Name:
    return Name(str(token), _span(token))


@dataclass(slots=True)
class _Recovery:
    """Notes each mistake and puts the parser back on its feet."""

    source: str
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    mended: int = 0
    last_line: int = 0

    def mend(self, error: UnexpectedInput) -> bool:
        """Called by the parser at a mistake; True when it can go on from where it was left."""
        self.mended += 1
        if isinstance(error, UnexpectedCharacters):
            going_on = self._skip_character(error)
        elif cast(Any, error).token.type == "$END":
            going_on = self._close_all(error)
        else:
            going_on = self._mend_token(error)
        return going_on and self.mended < _MOST_MENDED

    def with_good_name(self) -> str:
        """The text, its job's name noted and put right if it is none: it would spoil the whole rest."""
        head = _HEAD.match(self.source)
        if head is None or _is_good_head(head["name"]):
            return self.source
        start, end = head.span("name")
        line = self.source.count("\n", 0, start) + 1
        column = start - (self.source.rfind("\n", 0, start) + 1) + 1
        self._note(syntax_errors.BAD_NAME, quote(head["name"]), Span(line, column, column + end - start))
        return f"{self.source[:start]}{'x' * (end - start)}{self.source[end:]}"

    def _note(self, words: ErrorWords, found: str, span: Span) -> None:
        # A second mistake on a line is most often the first one's echo.
        if span.line == self.last_line or words.code in _ONCE & {one.code for one in self.diagnostics}:
            return
        self.last_line = span.line
        message = words.message.replace("{found}", found)
        self.diagnostics.append(Diagnostic(words.code, message, span, words.hint))

    def _skip_character(self, error: Any) -> bool:
        character: str = error.char
        span = Span(error.line, error.column, error.column + 1)
        self._note(syntax_errors.words_for_character(character), quote(character), span)
        if not syntax_errors.spoils_line(character):
            return True
        parser = error.interactive_parser
        counter = parser.lexer_thread.state.line_ctr
        end = self.source.find("\n", counter.char_pos)
        counter.feed(self.source[counter.char_pos : len(self.source) if end < 0 else end])
        if character == '"' and "STRING" in parser.choices():
            parser.feed_token(Token("STRING", '""', line=error.line, column=error.column))
        return True

    def _mend_token(self, error: Any) -> bool:
        parser, token = error.interactive_parser, error.token
        stack: list[Any] = parser.parser_state.value_stack
        words = _words_at(error)
        # What is wrong about `key = }` and `key = other = 1` is the first key.
        wrong = _last_key(stack) if words is syntax_errors.NO_VALUE else token
        self._note(words, quote(str(wrong)), _span(wrong))
        if token.type == "LBRACE" and stack and _is_token(stack[-1], "JOB"):
            parser.feed_token(Token.new_borrow_pos("NAME", "", token))
        # Where only a name or a value may stand, such as behind `device`, it is the `=` that is too much.
        if token.type != "EQUAL" or not parser.choices().keys().isdisjoint(("RBRACE", "RSQB")):
            _put_in(parser, _MISSING_BEFORE.get(token.type, ()), token)
        # A token that fits nowhere is left out.
        if token.type in parser.choices():
            parser.feed_token(token)
        return True

    def _close_all(self, error: Any) -> bool:
        """The text ends too early: say which block is open, and close every one."""
        parser = error.interactive_parser
        stack: list[Any] = parser.parser_state.value_stack
        openings = [index for index, value in enumerate(stack) if _is_token(value, "LBRACE")]
        if openings and _is_token(stack[-1], "RBRACE"):
            openings.pop()
        if not openings:
            where = _span(stack[-1]) if stack else Span(1, 1, 2)
            self._note(_words_at(error), "the end of the file", where)
            return False
        name = stack[openings[-1] - 1]
        # Never an echo, even on the line of another mistake.
        self.last_line = 0
        self._note(syntax_errors.UNCLOSED, f"block {quote(str(name))}", _span(name))
        closing = Token.new_borrow_pos("RBRACE", "}", error.token)
        for _ in openings:
            _put_in(parser, _MISSING_BEFORE["RBRACE"], closing)
            if "RBRACE" not in parser.choices():
                return False
            parser.feed_token(closing)
        return True


def _is_good_head(name: str) -> bool:
    """One word; or nothing or a block, which the grammar has words for."""
    words = name.split()
    return not words or (all(map(_NAME.fullmatch, words)) and (len(words) == 1 or words[-1] in BLOCKS))


def _last_key(stack: list[Any]) -> Token:
    """Token before the last `=`."""
    equal = max(index for index, value in enumerate(stack) if _is_token(value, "EQUAL"))
    return stack[equal - 1]


def _put_in(parser: Any, missing: tuple[str, ...], token: Token) -> None:
    """Feed the parser what the user left out before a token, as far as it fits and until the token does."""
    for kind in missing:
        if token.type not in parser.choices() and kind in parser.choices():
            parser.feed_token(Token.new_borrow_pos(kind, "", token))


def _is_token(value: object, kind: str) -> bool:
    return isinstance(value, Token) and value.type == kind


def _words_at(error: Any) -> ErrorWords:
    """The words of the example that goes wrong in the same parser state, best at the same token."""
    table = _examples()
    return next((table[key] for key in _keys(error) if key in table), syntax_errors.ANYTHING)


@cache
def _examples() -> dict[tuple[object, ...], ErrorWords]:
    table: dict[tuple[object, ...], ErrorWords] = {}
    for words, examples in syntax_errors.MALFORMED:
        for example in examples:
            try:
                _parser().parse(example)
            except UnexpectedInput as error:
                for key in _keys(error):
                    table.setdefault(key, words)
    return table


def _keys(error: Any) -> tuple[tuple[object, ...], ...]:
    """Keys by which an error matches an example, the closest first."""
    state, token = error.state.position, error.token
    return ((state, token.type, str(token)), (state, token.type), (state,))
