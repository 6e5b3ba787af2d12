"""Jobs that are planned once for all tests of simulated worlds."""

import pytest

from tests.runtime.world.jobs import other_shapes, sharded_jobs, world_jobs
from tests.runtime.world.scenarios import WorldJob


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[WorldJob]:
    return world_jobs(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> list[WorldJob]:
    return other_shapes(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="session")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> list[WorldJob]:
    return sharded_jobs(tmp_path_factory.mktemp("sharded"))
