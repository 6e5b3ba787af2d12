"""Jobs for runs that are disturbed, and processes that need not load torch."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from recycle_runtime.launcher import kept_process
from tests.support.warm_processes import WarmProcess

_JOB = """\
job disturbed {{
  parallel {{ pipeline = {stages}  data = {pipelines} }}
  batch    {{ microbatches = {microbatches} }}
  profile  {{ forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1  {exchange} }}
  {techniques}
  tolerate {{ failures = {failures} }}
}}
"""
_BARRIER = "techniques { adaptive  decouple }"
_SHARDED = "optimizer { state = sharded  owners = 2 }"
_EXPERTS = f"{_SHARDED}  experts {{ slots = 2  every = 1 }}"


@pytest.fixture(scope="session", autouse=True)
def warm_processes() -> Generator[None]:
    """Jobs that run in the process of a test fork theirs. A command that a test starts starts its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_process, "Popen", WarmProcess)
        yield


Compile = Callable[..., str]


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles a job of these numbers; the path of its bundle."""

    def made(
        stages: int,
        pipelines: int,
        microbatches: int,
        failures: int,
        techniques: str = "",
        exchange: str = "",
    ) -> str:
        folder = tmp_path_factory.mktemp("disturbed")
        text = _JOB.format(
            stages=stages, pipelines=pipelines, microbatches=microbatches, failures=failures,
            techniques=techniques, exchange=exchange,
        )  # fmt: skip
        (folder / "test.job").write_text(text)
        return _bundle_of(folder / "test.job", folder / "test.plan")

    return made


def _bundle_of(job: Path, bundle: Path) -> str:
    assert main(["--quiet", "compile", str(job), "-o", str(bundle), "--jobs", "1"]) == 0
    return str(bundle)


@pytest.fixture(scope="session")
def square(compiled: Compile) -> str:
    """Two stages, two pipelines, two micro-batches, staggered steps."""
    return compiled(2, 2, 2, 2)


@pytest.fixture(scope="session")
def square_with_barrier(compiled: Compile) -> str:
    """The same, with steps that wait for each other."""
    return compiled(2, 2, 2, 2, _BARRIER)


@pytest.fixture(scope="session")
def sharded(compiled: Compile) -> str:
    """Two stages, three pipelines, staggered steps, optimizer state in shards with two owners each."""
    return compiled(2, 3, 2, 2, _SHARDED)


@pytest.fixture(scope="session")
def sharded_with_barrier(compiled: Compile) -> str:
    """The same, with steps that wait for each other."""
    return compiled(2, 3, 2, 2, f"{_BARRIER} {_SHARDED}")


@pytest.fixture(scope="session")
def experts(compiled: Compile) -> str:
    """Two stages, three pipelines, staggered steps, experts placed anew in every step; W is computed while
    tokens travel."""
    return compiled(2, 3, 2, 2, _EXPERTS, "exchange = 0.5")


@pytest.fixture(scope="session")
def pair(compiled: Compile) -> str:
    """One stage, two pipelines: the least with peers."""
    return compiled(1, 2, 1, 1)


@pytest.fixture(scope="session")
def wide(compiled: Compile) -> str:
    """Two stages, three pipelines, two micro-batches."""
    return compiled(2, 3, 2, 3)


@pytest.fixture(scope="session")
def running_example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The paper's: three pipelines of four stages."""
    source = Path(__file__).resolve().parents[2] / "examples" / "figure3.job"
    return _bundle_of(source, tmp_path_factory.mktemp("example") / "figure3.plan")
