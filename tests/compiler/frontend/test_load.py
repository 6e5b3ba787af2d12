"""Files that are no job files: each gets one clean error, fast."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend import format_job, load_job, parse_job_text
from recycle_compiler.frontend.load import MOST_BYTES
from recycle_compiler.frontend.parse import grammar_path
from tests.compiler.frontend.job_texts import TOKENS, codes, errors_of, job_text

GOOD = job_text().encode()


def refused(path: Path) -> CompileError:
    with pytest.raises(CompileError) as caught:
        load_job(path)
    assert caught.value.exit_code == 1
    assert str(path) in caught.value.render()
    return caught.value


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty"),
        (b" \n\t\r\n", "empty"),
        (b"# only words\n", "no-job"),
        (b"\xff\xfe\x00j", "not-text"),
        (bytes(range(256)), "not-text"),
        (b"job a {\x00}", "not-text"),
        (GOOD.decode().encode("utf-16"), "not-text"),
        (b"#" * (MOST_BYTES + 1), "too-large"),
        (b"job a { " + b"b { }\n" * 120_000 + b"}", "too-large"),
        (b"job a { " + b"x{" * 40_000, "unclosed"),
        (b"PK\x03\x04", "no-job"),
    ],
)
def test_what_is_not_a_job(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "x.job"
    path.write_bytes(content)
    assert codes(refused(path))[-1] == code


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.job").diagnostics[0].message == "the file does not exist"
    assert refused(tmp_path).diagnostics[0].message == "the file is a folder"


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(CompileError, match="is no file name"):
        load_job("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.job"
    path.write_bytes(GOOD)
    path.chmod(0)
    assert refused(path).diagnostics[0].message == "the file may not be read"


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + GOOD,
        GOOD.replace(b"\n", b"\r\n"),
        b"# a comment\r" + GOOD.replace(b"\n", b"\r"),
        GOOD.rstrip(),
    ],
)
def test_byte_order_marks_and_line_ends_do_not_matter(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.job"
    path.write_bytes(content)
    assert load_job(path).spec == parse_job_text(GOOD.decode(), "a.job")


def test_places_are_right_with_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.job"
    path.write_bytes(GOOD.replace(b"data = 3", b"data = 0").replace(b"\n", b"\r\n"))
    assert f"{path}:2:33: error[range]" in refused(path).render()


@given(st.text())
def test_any_text_is_refused_in_words(text: str) -> None:
    assert errors_of(text).render()


LAYERS = "layers { forward = [0.3, 8 * 1, 2]  backward_input = 1  backward_weight = 1  resident = 0.5 }"


@pytest.mark.parametrize(
    "text",
    [
        job_text(
            memory="memory { capacity = [4, 3, 2, 1] }", solver="solver { time_limit = 60 s  gap = 1% }"
        ),
        job_text(
            LAYERS,
            parallel="parallel { pipeline = 4  data = 3  cut = [3, 3, 2, 2]  recut = on }",
            profile="",
            memory="memory { capacity = 9 }",
            tolerate="tolerate { failures = 2  redundancy = 2 }",
        ),
        job_text(LAYERS, parallel="parallel { workers = 7 }", profile="", memory="memory { capacity = 9 }"),
    ],
    ids=["stages", "layers", "workers"],
)
@given(data=st.data())
def test_a_damaged_job_is_read_or_refused_in_words(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(st.sampled_from(TOKENS)) + text[end:]
    try:
        spec = parse_job_text(text, "a.job")
    except CompileError as error:
        assert error.render()
        return
    assert list(spec.verify()) == []
    assert parse_job_text(format_job(text, "a.job"), "a.job") == spec


def test_the_grammar_is_found_in_a_checkout_and_in_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = grammar_path("job.lark")
    assert checkout.is_file()
    package = tmp_path / "recycle_compiler"
    (package / "_grammar").mkdir(parents=True)
    (package / "_grammar" / "job.lark").write_text("")
    monkeypatch.setattr(sys.modules["recycle_compiler.frontend.parse"], "_PACKAGE", package)
    assert grammar_path("job.lark") == package / "_grammar" / "job.lark"
    assert grammar_path("ir.lark") == tmp_path / "grammar" / "ir.lark"


def test_the_job_in_the_header_of_the_grammar_is_a_good_one() -> None:
    lines = grammar_path("job.lark").read_text(encoding="utf-8").split("\n")
    inside = [line.removeprefix("//     ") for line in lines if line.startswith("//     ")]
    job = "\n".join(inside[: inside.index("}") + 1])
    assert parse_job_text(job, "figure3.job").name == "figure3"
