"""Numbers of the playground: they make the job that they came from, and nonsense is refused in a sentence."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.frontend import format_job, load_job, parse_job_text
from recycle_compiler.ir.job import JobSpec, SolverOptions
from recycle_compiler.playground.settings import MOST, SettingsError, read_settings, settings_of

ROOT = Path(__file__).parents[3]
UNEVEN = """\
job uneven {
  parallel { pipeline = 3  data = 2  tensor = 4  tied = [0, 2] }
  batch    { microbatches = 5 }
  profile  {
    unit = ms
    forward = [1.5, 2, 2.25]  backward_input = 2  backward_weight = [1, 1, 0.000001]
    optimizer = 3  reduce = 1  transfer = [0.25, 1]
    activation = [96 MiB, 32 MiB, 1 B]  kept_for_weight = [1 MiB, 2 MiB, 0 B]
  }
  memory { capacity = [1 GiB, 2 GiB, 3 GiB] }
  techniques { stagger }
}
"""


def bare(job: JobSpec) -> JobSpec:
    """Without what the playground leaves to others."""
    return replace(job, failures=0, solver=SolverOptions())


@pytest.mark.parametrize("path", ["examples/figure3.job", "golden/specs/figure3-unlimited.job"])
def test_numbers_make_the_job_they_came_from(path: str) -> None:
    job = load_job(ROOT / path).spec
    text = settings_of(job).text()
    assert bare(parse_job_text(text, "x.job")) == bare(job)


def test_every_stage_keeps_its_values() -> None:
    job = parse_job_text(UNEVEN, "uneven.job")
    settings = settings_of(job)
    text = settings.text()
    assert bare(parse_job_text(text, "x.job")) == bare(job)
    assert format_job(text, "x.job") == text
    assert read_settings(json.loads(json.dumps(settings.document()))) == settings


def test_jobs_that_its_numbers_cannot_tell() -> None:
    mixture = load_job(ROOT / "examples/mixture.job").spec
    with pytest.raises(SettingsError, match="share experts"):
        settings_of(mixture)
    with pytest.raises(SettingsError, match="share out the optimizer's state"):
        settings_of(mixture.without_rounds)


def test_failed_workers_are_tolerated() -> None:
    job = load_job(ROOT / "examples/figure3.job").spec
    sent = settings_of(job).document() | {"failed": [[1, 2], [0, 0], [1, 2]]}
    settings = read_settings(sent)
    assert [str(worker) for worker in settings.failed] == ["0:0", "1:2"]
    assert parse_job_text(settings.text(), "x.job").failures == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 0}, "stages must be a whole number from 1 to 64"),
        ({"stages": True}, "stages must be a whole number"),
        ({"stages": 10**30}, "stages must be a whole number"),
        ({"pipelines": "3"}, "pipelines must be a whole number"),
        ({"microbatches": None}, "microbatches must be a whole number"),
        (
            {"pipelines": 64, "microbatches": 256},
            "too large for the playground: 196,608 ops, allowed are 60,000",
        ),
        ({"forward": [1, 1]}, "forward must be a list of 4 numbers from 0 to 1e+15, got [1, 1]"),
        ({"forward": [1, 1, 1, float("nan")]}, "forward must be a list of 4 numbers"),
        ({"forward": [1, 1, 1, -1]}, "forward must be a list of 4 numbers"),
        ({"forward": [1, 1, 1, 10**400]}, "forward must be a list of 4 numbers"),
        ({"forward": [1, 1, 1, "1 } memory {"]}, "forward must be a list of 4 numbers"),
        ({"forward": {}}, "forward must be a list of 4 numbers from 0 to 1e+15, got {}"),
        ({"capacity": [1]}, "capacity must be a list of 4 numbers"),
        ({"unit": "slot } x {"}, 'unit must be one of slot, us, ms, s, got "slot } x {"'),
        ({"unit": {}}, "unit must be one of slot, us, ms, s, got {}"),
        ({"name": ""}, "name must be a word"),
        ({"name": ["x" * 100]}, f'name must be a word of at most 100 letters, got ["{"x" * 38}...'),
        ({"in_bytes": 1}, "in_bytes must be true or false, got 1"),
        ({"techniques": [None]}, "techniques must be a list of words out of adaptive, decouple, stagger"),
        (
            {"failed": [[9, 0]]},
            "failed must be a list of [pipeline, stage], pipelines from 0 to 2 and",
        ),
        ({"failed": [[0]]}, "failed must be a list of [pipeline, stage]"),
        ({"failed": "0:0"}, "failed must be a list of [pipeline, stage]"),
        ({"tied": [7]}, "tied must be a list of stages from 0 to 3, got [7]"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(change: dict[str, Any], words: str) -> None:
    sent = settings_of(load_job(ROOT / "examples/figure3.job").spec).document() | change
    with pytest.raises(SettingsError) as error:
        read_settings(sent)
    assert str(error.value).startswith(words)


def test_settings_are_an_object() -> None:
    with pytest.raises(SettingsError, match="must be an object"):
        read_settings([1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)


@given(st.sampled_from(sorted(settings_of(parse_job_text(UNEVEN, "uneven.job")).document())), JSON)
def test_a_field_of_any_type_is_read_or_refused_by_its_name(name: str, value: Any) -> None:
    sent = settings_of(parse_job_text(UNEVEN, "uneven.job")).document() | {name: value}
    try:
        read_settings(sent)
    except SettingsError as error:
        assert name in str(error) or name in MOST
