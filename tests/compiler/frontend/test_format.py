"""The canonical form: stable, and nothing but white space is changed."""

from pathlib import Path

import pytest
from hypothesis import given

from recycle_compiler.diagnostics import CompileError, Span
from recycle_compiler.frontend import format_job, parse_job_text
from recycle_compiler.frontend.format import WIDTH, Comments
from tests.compiler.frontend.job_texts import job_sources

ROOT = Path(__file__).resolve().parents[3]
JOBS = [*sorted((ROOT / "examples").glob("*.job")), *sorted((ROOT / "golden").glob("specs/*.job"))]
END = Span(1 << 40, 1, 2)


def formatted(source: str) -> str:
    once = format_job(source, "a.job")
    assert format_job(once, "a.job") == once
    return once


@given(job_sources())
def test_a_second_pass_changes_nothing(source: str) -> None:
    formatted(source)


@given(job_sources())
def test_the_job_stays_the_same(source: str) -> None:
    assert parse_job_text(formatted(source), "a.job") == parse_job_text(source, "a.job")


@given(job_sources())
def test_every_comment_is_kept_in_order(source: str) -> None:
    before = [comment.text for comment in Comments(source).take_before(END)]
    after = [comment.text for comment in Comments(formatted(source)).take_before(END)]
    assert after == before


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_jobs_of_this_repository_are_in_canonical_form(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert formatted(source) == source


def test_neighbours_are_aligned_and_blank_lines_kept_single() -> None:
    source = """
job  a{parallel{pipeline=4 data=3}batch{microbatches=6}


  memory {capacity=[ 4,3 , 2,1, ]}
  techniques{ adaptive
  }
  device   a100
  solver { gap=1 % time_limit =60s }
}"""
    assert (
        formatted(source)
        == """\
job a {
  parallel { pipeline = 4  data = 3 }
  batch    { microbatches = 6 }

  memory     { capacity = [4, 3, 2, 1] }
  techniques { adaptive }
  device a100
  solver { gap = 1%  time_limit = 60 s }
}
"""
    )


def test_comments_stay_where_they_belong() -> None:
    source = """\
# first
   # second

job a { # opens
  parallel { pipeline = 4 } # behind
      # own line
  profile { forward = 1 backward_input = 1 # row
     reduce = # odd
       2
     transfer = [ 1, # one
       # before two
       2 ]

     # last
  } # closes
}   # end
# after
"""
    assert (
        formatted(source)
        == """\
# first
# second

job a {                              # opens
  parallel { pipeline = 4 }          # behind
  # own line
  profile {
    forward = 1  backward_input = 1  # row
    # odd
    reduce = 2
    transfer = [
      1,                             # one
      # before two
      2
    ]

    # last
  }                                  # closes
}                                    # end
# after
"""
    )


def test_a_long_list_is_filled_and_a_long_row_is_broken() -> None:
    values = ", ".join(["1.125"] * 40)
    text = formatted(f"job a {{ profile {{ forward = [{values}] backward_input = 1 {'reduce = 2 ' * 8} }} }}")
    lines = text.split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert lines[2] == "    forward = ["
    assert lines[3].startswith("      1.125, 1.125,")
    assert text.count("1.125") == 40
    assert lines.count("    reduce = 2") == 8


def test_a_block_that_fits_goes_on_one_line() -> None:
    assert formatted("job a {\n b {\n c = 1\n\n d\n }\n}") == "job a {\n  b { c = 1  d }\n}\n"


@pytest.mark.parametrize(
    "head", ['profile from "x.json"', "model gpt { layers = 1 }", "device a100 { efficiency = 9% }"]
)
def test_every_form_of_block(head: str) -> None:
    assert formatted(f"job a {{ {head} }}") == f"job a {{\n  {head}\n}}\n"


def test_names_need_not_be_right() -> None:
    assert formatted("job a { foo { bar } }") == "job a {\n  foo { bar }\n}\n"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "job",
        "job a {",
        "job a { b { c { } } } extra",
        "job a { parallel { batch { } } }",
        "job a { " + "b { " * 5_000 + "} " * 5_001,
    ],
)
def test_what_is_no_job_is_refused(source: str) -> None:
    with pytest.raises(CompileError):
        format_job(source, "a.job")
