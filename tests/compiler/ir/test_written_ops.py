"""Texts of schedules with workers or ops that are written twice, or not at all."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.replay import replay
from recycle_compiler.cli.main import main
from recycle_compiler.ir.failure import FailureSet
from recycle_compiler.ir.groups import absent_of_groups, job_of_groups
from recycle_compiler.ir.job import JobSpec, TextError
from recycle_compiler.ir.layout import absent_cells, job_of_layout
from recycle_compiler.ir.text import parse_schedule, print_schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.support.chunks import chunked_jobs
from tests.support.jobs import small_targets
from tests.support.layers import jobs_and_groups, jobs_and_layouts


def text_of(job: JobSpec, failed: FailureSet) -> str:
    return print_schedule(replay(plan_failed(job, failed, effort=Effort().quick())))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Schedules of jobs of all kinds, as our own writer writes them."""
    match draw(st.sampled_from(["plain", "chunks", "layout", "groups"])):
        case "plain":
            target = draw(small_targets().filter(lambda target: all(target.hosts)))
            return text_of(target.job, target.failed)
        case "chunks":
            return text_of(draw(chunked_jobs()), ())
        case "layout":
            job, layout = draw(jobs_and_layouts())
            derived = job_of_layout(job, layout)
            return text_of(derived, absent_cells(derived, layout))
        case _:
            job, groups = draw(jobs_and_groups())
            derived = job_of_groups(job, groups)
            return text_of(derived, absent_of_groups(derived, groups))


def refused(text: str) -> TextError:
    with pytest.raises(TextError) as caught:
        parse_schedule(text)
    error = caught.value
    assert error.hint and error.word is not None
    assert len(text.splitlines()[error.line - 1].split()) > error.word
    return error


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(texts(), st.data())
def test_what_is_written_is_accepted_and_what_is_doubled_or_left_out_is_not(
    text: str, data: st.DataObject
) -> None:
    assert print_schedule(parse_schedule(text)) == text
    lines = text.splitlines(keepends=True)
    worker = data.draw(st.sampled_from([line for line in lines if line.startswith("worker ")]))
    error = refused(text + worker)
    assert (error.line, error.word) == (len(lines) + 1, 1)
    work = list(re.finditer(r"  \S+ [FBIW][0-9]\S*", text))
    cell = data.draw(st.sampled_from(work))
    refused(text[: cell.start()] + text[cell.end() :])
    twice = refused(text[: cell.end()] + cell[0] + text[cell.end() :])
    assert "one too many" in twice.what


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "worker 1:0  0 F1.0",
            "worker 0:0  0 F1.0",
            """bad.txt:22:8: error[schedule-text]: worker 0:0 has a line already, line 21
worker 0:0  0 F1.0  1 F1.1  5 I1.0  6 W1.0  9 I1.1  10 W1.1  11 R  11 O
       ^^^

hint: write all ops of a worker in one line
""",
        ),
        (
            "  5 I1.0  6 W1.0",
            "",
            """bad.txt:22:8: error[schedule-text]: no worker of stage 0 has B1.0 or I1.0
worker 1:0  0 F1.0  1 F1.1  9 I1.1  10 W1.1  11 R  11 O
       ^^^

hint: on every chunk a micro-batch has one F, and one B or one I and one W; if the text was cut off, write \
it again with `--format schedule`
""",
        ),
        (
            "  6 W1.0",
            "  6 W1.1",
            """bad.txt:22:56: error[schedule-text]: W1.1 of worker 1:0 is one too many: line 22 has W1.1
worker 1:0  0 F1.0  1 F1.1  5 I1.0  6 W1.1  9 I1.1  10 W1.1  11 R  11 O
                                                       ^^^^

hint: on every chunk a micro-batch has one F, and one B or one I and one W
""",
        ),
        (
            "  6 W1.0",
            "  6 B1.0",
            """bad.txt:22:39: error[schedule-text]: B1.0 of worker 1:0 is one too many: line 22 has I1.0
worker 1:0  0 F1.0  1 F1.1  5 I1.0  6 B1.0  9 I1.1  10 W1.1  11 R  11 O
                                      ^^^^

hint: on every chunk a micro-batch has one F, and one B or one I and one W
""",
        ),
        (
            "failed 1:1",
            "failed 1:0",
            """bad.txt:22:8: error[schedule-text]: worker 1:0 has failed, and has a line of ops
worker 1:0  0 F1.0  1 F1.1  5 I1.0  6 W1.0  9 I1.1  10 W1.1  11 R  11 O
       ^^^

hint: take the worker out of the line `failed`, or leave out its own
""",
        ),
        (
            "worker 1:0  0 F1.0",
            "worker 1:0  0 F1.0.c1",
            """bad.txt:22:15: error[schedule-text]: F1.0.c1 of worker 1:0 is on a chunk that the \
worker does not hold
worker 1:0  0 F1.0.c1  1 F1.1  5 I1.0  6 W1.0  9 I1.1  10 W1.1  11 R  11 O
              ^^^^^^^

hint: `--format schedule` of `recyclec show` and `recyclec plan` writes such a text
""",
        ),
        (
            "  11 R  11 O\nworker 1:0",
            "  11 R  11\nworker 1:0",
            """bad.txt:21:67: error[schedule-text]: the line of a worker has its name, and pairs of \
a start and an op
worker 0:0  0 F0.0  1 F0.1  3 I0.0  4 W0.0  7 I0.1  8 W0.1  11 R  11
                                                                  ^^

hint: `--format schedule` of `recyclec show` and `recyclec plan` writes such a text
""",
        ),
    ],
)
def test_what_diff_says(
    old: str,
    new: str,
    words: str,
    tiny_text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tiny_text.count(old) == 1
    Path("good.txt").write_text(tiny_text)
    Path("bad.txt").write_text(tiny_text.replace(old, new))
    assert main(["diff", "good.txt", "bad.txt"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", words)


def test_a_text_that_was_cut_off(tiny_text: str) -> None:
    """No worker of the second stage has a line: the place is where the text ends."""
    cut = tiny_text[: tiny_text.index("worker 0:1")]
    error = refused(cut)
    assert error.what == "no worker of stage 1 has F0.0: none has a line"
    assert error.line == len(cut.splitlines())


def test_a_job_that_is_far_larger_than_its_schedule(tiny_text: str) -> None:
    """A missing op is found without counting all that would be there."""
    error = refused(tiny_text.replace("microbatches 2", "microbatches 1000000000"))
    assert error.what == "no worker of stage 0 has F0.2"
