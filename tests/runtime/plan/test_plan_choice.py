"""The plan that fits, and the parts of workers in it."""

from pathlib import Path

import pytest

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_choice import MissingPlanError, NoFittingPlanError, choose_plan, parse_workers
from tests.support.jobs import figure3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("plans") / "two.plan"
    job = figure3(None)
    write_bundle(path, source="", plans=[plan_failed(job, failure_set(failed)) for failed in ([], [(0, 2)])])
    return Bundle.read(path)


def test_exact_plan(bundle: Bundle) -> None:
    choice = choose_plan(bundle, [(0, 2)])
    assert choice.plan == 1
    assert all(place == part for place, part in choice.roles.items())


def test_peers_take_each_others_roles(bundle: Bundle) -> None:
    choice = choose_plan(bundle, [(1, 2)])
    assert choice.plan == 1
    assert {place: part for place, part in choice.roles.items() if place != part} == {(0, 2): (1, 2)}
    assert (1, 2) not in choice.roles
    assert sorted(choice.roles.values()) == sorted(bundle.workers(1))


def test_no_plan(bundle: Bundle) -> None:
    with pytest.raises(MissingPlanError, match="recyclec plan JOB --failed 0:0,0:1"):
        choose_plan(bundle, [(0, 1), (0, 0)])
    with pytest.raises(NoFittingPlanError, match="there is no worker 3:0: pipelines go from 0 to 2"):
        choose_plan(bundle, [(3, 0)])


def test_workers_as_users_write_them() -> None:
    assert parse_workers(["1:2,0:3", "1:2"]) == ((1, 2), (0, 3))
    with pytest.raises(ValueError, match="must be like 0:2"):
        parse_workers(["1-2"])


def test_missing_file_is_an_os_error() -> None:
    with pytest.raises(OSError, match="nope"):
        Bundle.read(Path("nope.plan"))
