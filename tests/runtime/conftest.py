"""Jobs for runs that are disturbed."""

from pathlib import Path

import pytest

from recycle_compiler.cli.main import main

_JOB = """\
job disturbed {{
  parallel {{ pipeline = {stages}  data = {pipelines} }}
  batch    {{ microbatches = {microbatches} }}
  profile  {{ forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }}
  {techniques}
  tolerate {{ failures = {failures} }}
}}
"""
_SHARDED = "optimizer { state = sharded  owners = 2 }"
_EXPERTS = f"{_SHARDED}  experts {{ slots = 2  every = 1 }}"


def _compiled(folder: Path, name: str, **fields: object) -> str:
    source, bundle = folder / f"{name}.job", folder / f"{name}.plan"
    source.write_text(_JOB.format(**({"techniques": ""} | fields)))
    assert main(["--quiet", "compile", str(source), "-o", str(bundle), "--jobs", "1"]) == 0
    return str(bundle)


@pytest.fixture(scope="session")
def square(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two stages, two pipelines, two micro-batches, staggered steps."""
    folder = tmp_path_factory.mktemp("square")
    return _compiled(folder, "square", stages=2, pipelines=2, microbatches=2, failures=2)


@pytest.fixture(scope="session")
def square_with_barrier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same, with steps that wait for each other."""
    folder = tmp_path_factory.mktemp("barrier")
    techniques = "techniques { adaptive  decouple }"
    return _compiled(
        folder, "barrier", stages=2, pipelines=2, microbatches=2, failures=2, techniques=techniques
    )


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two stages, three pipelines, staggered steps, optimizer state in shards with two owners each."""
    folder = tmp_path_factory.mktemp("sharded")
    return _compiled(
        folder, "sharded", stages=2, pipelines=3, microbatches=2, failures=2, techniques=_SHARDED
    )


@pytest.fixture(scope="session")
def sharded_with_barrier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same, with steps that wait for each other."""
    folder = tmp_path_factory.mktemp("sharded-barrier")
    techniques = f"techniques {{ adaptive  decouple }} {_SHARDED}"
    return _compiled(
        folder, "barrier", stages=2, pipelines=3, microbatches=2, failures=2, techniques=techniques
    )


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two stages, three pipelines, staggered steps, experts placed anew in every step."""
    folder = tmp_path_factory.mktemp("experts")
    return _compiled(
        folder, "experts", stages=2, pipelines=3, microbatches=1, failures=2, techniques=_EXPERTS
    )


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One stage, two pipelines: the least with peers."""
    folder = tmp_path_factory.mktemp("pair")
    return _compiled(folder, "pair", stages=1, pipelines=2, microbatches=1, failures=1)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two stages, three pipelines, two micro-batches."""
    folder = tmp_path_factory.mktemp("wide")
    return _compiled(folder, "wide", stages=2, pipelines=3, microbatches=2, failures=3)


@pytest.fixture(scope="session")
def running_example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The paper's: three pipelines of four stages."""
    folder = tmp_path_factory.mktemp("example")
    source = Path(__file__).resolve().parents[2] / "examples" / "figure3.job"
    bundle = folder / "figure3.plan"
    assert main(["--quiet", "compile", str(source), "-o", str(bundle), "--jobs", "1"]) == 0
    return str(bundle)
