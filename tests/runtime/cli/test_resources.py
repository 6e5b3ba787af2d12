"""Limits of the system that a run needs."""

import resource

import pytest

from recycle_runtime.cli.options.resources import allow_connections, check_ports, relays
from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.options.run import RELAY_FROM


def test_too_few_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(
        UserError, match=r"may open 1024 files, and a job of 2048 worker processes takes 6272"
    ):
        allow_connections(2048, most=1024)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_the_limit_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_connections(64)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 3 * 64 + 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_limit_where_agents_relay() -> None:
    """It is enough for those whose agent is lost, and raised as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with pytest.raises(UserError, match=r"a job of 200 worker processes takes 328"):
            allow_connections(200, most=300, relay=True)
        allow_connections(64, relay=True)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 3 * 64 + 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_whether_agents_relay() -> None:
    assert [relays(None, size) for size in (4, RELAY_FROM - 1, RELAY_FROM)] == [False, False, True]
    assert relays(True, 4) and not relays(False, 4096)


def test_ports() -> None:
    given_out = (30000, 31000)
    check_ports(None, given_out)
    check_ports("30000-31000", given_out)
    check_ports("20000-40000", given_out)
    with pytest.raises(UserError, match=r"here 30000-31000; hold it .* `sysctl -w .*='30000 30500'`"):
        check_ports("30000-30500", given_out)
    with pytest.raises(UserError, match="does not say"):
        check_ports("30000-30500", None)
    for wrong in ("30000", "2-1", "a-b", "0-5", "5-70000"):
        with pytest.raises(UsageError, match="must be like"):
            check_ports(wrong, given_out)
