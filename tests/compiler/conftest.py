"""Fixtures of the compiler's tests: a pass that is given or leaves IR that is not valid fails the test."""

from collections.abc import Callable, Generator
from functools import wraps
from typing import cast

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.ir.text import Level
from recycle_compiler.passes.pipeline import AnyPass
from recycle_compiler.passes.text import PASSES, pass_class
from tests.support.layered_text import LAYERED

Run = Callable[[AnyPass, Level], Level]


@pytest.fixture(scope="session", autouse=True)
def verified_passes() -> Generator[None]:
    """Verify before and after every pass, in a pipeline or alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name in PASSES:
            kind = pass_class(name)
            patch.setattr(kind, "run", _verified(cast(Run, kind.run)))
        yield


def _verified(run: Run) -> Run:
    @wraps(run)
    def verified(self: AnyPass, before: Level) -> Level:
        assert list(before.verify()) == [], f"{self.name} is given IR that is not valid"
        after = run(self, before)
        assert list(after.verify()) == [], f"{self.name} leaves IR that is not valid"
        return after

    return verified


@pytest.fixture(scope="session")
def layered_job(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small job in layers, in a file."""
    path = tmp_path_factory.mktemp("layered") / "layered.job"
    path.write_text(LAYERED)
    return str(path)


@pytest.fixture(scope="session")
def layered_bundle(layered_job: str) -> str:
    """Its bundle, with plans under other cuts."""
    path = layered_job.replace(".job", ".plan")
    assert main(["--quiet", "compile", layered_job, "-o", path, "--jobs", "1"]) == 0
    return path
