"""Fixtures of all tests: goldens, and hypothesis settings that repeat from run to run."""

import difflib
import gc
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bench.diff_goldens import is_choice_of_the_solver
from recycle_compiler.cli.main import main
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_schedule
from recycle_compiler.scheduling.search import Effort
from recycle_runtime.logs import LOGGERS

ROOT = Path(__file__).resolve().parent.parent

# Processes of tests share few cores, and threads of torch that wait for each other there take many times as
# long as one alone. Torch reads this when it is imported, here and in processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# Processes that tests start find this tree first. They and this one keep the modules that they have compiled:
# pytest rewrites every assertion of every test before.
_PATHS = [str(ROOT / path) for path in (".", "runtime")]
os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Nothing that is loaded and collected is garbage; see `pytest_collection_finish`.
gc.disable()

GOLDEN = ROOT / "golden"

# Slow machines must not fail a property, and the same commit must pass or fail everywhere.
# How long it takes to draw examples depends on what else the machine does.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make test` tries half of the examples of every property, and the same ones in every run;
    `make test-all` tries all."""
    if not config.getoption("markexpr"):
        return
    for test in {getattr(item, "obj", None) for item in items}:
        if isinstance(chosen := getattr(test, _SETTINGS, None), settings):
            setattr(test, _SETTINGS, settings(chosen, max_examples=(chosen.max_examples + 1) // 2))


_SETTINGS = "_hypothesis_internal_use_settings"
"""Where hypothesis keeps what `@settings` has said of a test."""


def pytest_collection_finish() -> None:
    """Modules that are loaded by now stay: to look through them again took longer than most tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logs_as_at_the_start() -> None:
    """A command that ran in this process before has sent the lines of both packages elsewhere."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare text with the file of that name in golden/; `make golden` rewrites the file instead."""
    return compare_with_golden


@pytest.fixture
def golden_plan() -> Callable[[str, str, Effort], None]:
    """The same for a schedule: what only the solver finds may be another one that is as good."""

    def compare(name: str, text: str, effort: Effort) -> None:
        path = GOLDEN / name
        updates = os.environ.get("RECYCLEC_UPDATE_GOLDEN") == "1" or not path.exists()
        before = text if updates else path.read_text(encoding="utf-8")
        if before == text or not is_choice_of_the_solver(before, text, effort):
            compare_with_golden(name, text)

    return compare


@pytest.fixture
def page_part() -> Callable[[Path, str], None]:
    """Compare text with the part of a page from its first line to the next heading; `make golden` rewrites
    that part instead."""

    def compare(page: Path, part: str) -> None:
        before = page.read_text(encoding="utf-8")
        start = before.index(part[: part.index("\n") + 1])
        end = before.find("\n#", start + 1)
        after = before[:start] + part + (before[end:] if end >= 0 else "")
        if os.environ.get("RECYCLEC_UPDATE_GOLDEN") == "1":
            page.write_text(after, encoding="utf-8")
        else:
            assert after == before, f"{page}: {_HINT}"

    return compare


_HINT = "if the change is meant, run `make golden`, or this test alone with RECYCLEC_UPDATE_GOLDEN=1"


def compare_with_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("RECYCLEC_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.exists():
        pytest.fail(
            f"golden/{name} does not exist; run `make golden`, then read what it wrote", pytrace=False
        )
    expected = path.read_text(encoding="utf-8")
    if expected == text:
        return
    lines = difflib.unified_diff(
        expected.splitlines(), text.splitlines(), f"golden/{name}", "what the code does now", lineterm=""
    )
    pytest.fail("\n".join([*lines, _HINT]), pytrace=False)


SMALL = """\
# Two stages, three pipelines.
job small {
  parallel { pipeline = 2  data = 3 }
  batch    { microbatches = 2 }
  profile  { forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }
  tolerate { failures = 2 }
}
"""


@pytest.fixture(scope="session")
def small_job(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a job that is planned in a moment."""
    path = tmp_path_factory.mktemp("jobs") / "small.job"
    path.write_text(SMALL)
    return str(path)


@pytest.fixture(scope="session")
def small_bundle(small_job: str) -> str:
    """The path of its bundle: plans for 0, 1 and 2 failures."""
    path = small_job.replace(".job", ".plan")
    assert main(["--quiet", "compile", small_job, "-o", path, "--jobs", "1"]) == 0
    return path


@pytest.fixture
def recyclec(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def run(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


TINY = """\
schedule
job tiny
shape stages 2 pipelines 2 tensor 1 microbatches 2
units slot count
forward 1000 1000
backward_input 1000 1000
backward_weight 1000 1000
optimizer 1000 1000
reduce 0 0
transfer 0
activation 1000 1000
kept_for_weight 1000 1000
capacity unlimited 4000
parameters 0 0
techniques adaptive decouple stagger
failures 1
solver time_limit_ns 60000000000 gap_ppm 0 seed 0
failed 1:1
release 0 1
claims makespan 13 period 13 lower_bound 13 cut_short no reason load of stage 1
worker 0:0  0 F0.0  1 F0.1  3 I0.0  4 W0.0  7 I0.1  8 W0.1  11 R  11 O
worker 1:0  0 F1.0  1 F1.1  5 I1.0  6 W1.0  9 I1.1  10 W1.1  11 R  11 O
worker 0:1  1 F0.0  2 I0.0  3 F1.0  4 I1.0  5 F0.1  6 I0.1  7 F1.1  8 I1.1  \
9 W0.0  10 W1.0  11 W0.1  12 W1.1  13 R  13 O
"""


@pytest.fixture
def tiny_text() -> str:
    """A schedule of two stages and two pipelines; worker 0:1 also does the work of 1:1, which has failed."""
    return TINY


@pytest.fixture
def tiny(tiny_text: str) -> Schedule:
    return parse_schedule(tiny_text)
