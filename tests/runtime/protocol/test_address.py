"""Address of the coordinator."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from recycle_runtime.cli.options.addresses import address_or_file
from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.protocol.address import (
    FollowedAddress,
    address_now,
    own_address_towards,
    parse_address,
    port_range,
    published,
    term_now,
)


@dataclass(frozen=True, slots=True)
class Options:
    host: str
    port: int
    address_file: str | None


def test_addresses() -> None:
    assert parse_address("10.0.0.1:29500\n") == ("10.0.0.1", 29500)
    assert parse_address("[fd00::1]:80") == ("fd00::1", 80)
    assert [parse_address(text) for text in ("", "node7", ":80", "node7:0", "node7:70000", "a:b")] == [
        None
    ] * 6
    assert parse_address("node7:0", least=0) == ("node7", 0)


def test_ports_that_the_system_gives_out(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("30000\t31000\n")
    assert port_range(tmp_path / "range") == (30000, 31000)
    assert port_range(tmp_path / "missing") is None
    assert port_range() is not None


def test_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "address"
    options = Options("node1", 1, str(file))
    assert address_now(options) == ("node1", 1), "it is not there"
    file.write_text("node2:2")
    assert address_now(options) == ("node2", 2)
    file.write_text("node3:3")
    assert address_now(options) == ("node3", 3)
    file.write_text("half a wo")
    assert address_now(options) == ("node1", 1)
    assert address_now(Options("node1", 1, None)) == ("node1", 1)


def test_an_address_has_a_term_where_coordinators_take_turns(tmp_path: Path) -> None:
    file = tmp_path / "address"
    options = Options("node1", 1, str(file))
    assert term_now(options) == 0
    file.write_text(published("fd00::1", 80, 12))
    assert file.read_text() == "[fd00::1]:80 term 12\n"
    assert address_now(options) == ("fd00::1", 80)
    assert term_now(options) == 12
    for text in ("node2:2", "node2:2 term", "node2:2 term x", f"node2:2 term {'9' * 40}"):
        file.write_text(text)
        assert term_now(options) == 0
    assert term_now(Options("node1", 1, None)) == 0


def test_an_address_is_followed(tmp_path: Path) -> None:
    file = tmp_path / "address"
    followed = FollowedAddress(Options("node1", 1, str(file)))
    assert followed() == ("node1", 1)
    for name in ("node2", "node3"):
        aside = tmp_path / name
        aside.write_text(f"{name}:2")
        aside.replace(file)
        assert followed() == followed() == (name, 2)
    file.unlink()
    assert followed() == ("node3", 2), "where it was last"


def test_from_where_another_is_reached() -> None:
    assert own_address_towards("127.0.0.1", 80) == "127.0.0.1"
    assert own_address_towards("no such host", 80) is None


def test_what_is_published_can_be_reached() -> None:
    assert published("10.0.0.1", 80) == "10.0.0.1:80"
    assert published("fd00::1", 80) == "[fd00::1]:80"
    for everywhere in ("0.0.0.0", "::", ""):
        found = parse_address(published(everywhere, 80))
        assert found is not None and found[0] not in ("0.0.0.0", "::", "")


def test_an_option_takes_both(tmp_path: Path) -> None:
    file = tmp_path / "address"
    assert address_or_file("--coordinator", "node1:1", 0.0) == (("node1", 1), None)
    with pytest.raises(UsageError, match="must be like"):
        address_or_file("--coordinator", "node1", 0.0)
    with pytest.raises(UserError, match="no coordinator has left its address there"):
        address_or_file("--coordinator", str(file), 0.0)
    file.write_text("node2:2")
    assert address_or_file("--coordinator", str(file), 0.0) == (("node2", 2), str(file))
