"""One device for each process, one for all of them, or an error that says what there is."""

import json
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.devices import SHARED_DEVICE
from recycle_runtime.protocol.remote_store import StoreError
from recycle_runtime.transport import choose
from recycle_runtime.transport.choose import (
    DeviceStartError,
    PlacementError,
    ProcessPlace,
    TransportChoice,
    Way,
    beside_others,
    choose_way,
    connect,
    decide,
    device_of,
    place_of,
)
from recycle_runtime.transport.interface import Grid
from tests.runtime.transport.workers import in_threads

SECOND = timedelta(seconds=1)
CUDA = torch.device("cuda", 0)


def whole(host: str, gpu: str) -> ProcessPlace:
    return ProcessPlace(host, gpu, gpu)


def mig(host: str, number: int, gpu: str = "GPU-0") -> ProcessPlace:
    return ProcessPlace(host, f"MIG-{gpu}-{number}", gpu)


def test_a_gpu_for_each_on_one_host_or_several() -> None:
    assert decide([whole("a", f"GPU-{n}") for n in range(4)]) is Way.NCCL
    assert decide([whole(f"host{n // 2}", f"GPU-{n}") for n in range(4)]) is Way.NCCL


def test_one_gpu_for_all() -> None:
    assert decide([whole("a", "GPU-0")] * 12) is Way.SHARED_GPU


def test_mig_devices_of_one_gpu_are_devices_of_their_own() -> None:
    assert decide([mig("a", number) for number in range(7)]) is Way.NCCL
    assert decide([mig("a", 0), whole("a", "GPU-1"), mig("b", 0, "GPU-2")]) is Way.NCCL
    assert decide([mig("a", 3)] * 4) is Way.SHARED_GPU
    with pytest.raises(PlacementError, match="MIG-GPU-0-1 on a: rank 1, 2"):
        decide([mig("a", 0), mig("a", 1), mig("a", 1)])


def test_ranks_on_one_gpu_of_one_host_are_found() -> None:
    places = [mig("a", 0), whole("a", "GPU-1"), mig("a", 1), mig("a", 0, "GPU-2"), mig("b", 0)]
    assert beside_others(places) == [0, 2]
    assert beside_others([whole("a", "GPU-0")] * 3) == []


def test_one_process_has_its_own_gpu() -> None:
    assert decide([whole("a", "GPU-0")]) is Way.NCCL


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (
            [whole("a", "GPU-0"), whole("a", "GPU-1"), whole("a", "GPU-0")],
            "3 processes have 2 different GPUs on 1 hosts: GPU-0 on a: rank 0, 2; GPU-1 on a: rank 1",
        ),
        (
            [whole("a", "GPU-0"), whole("b", "GPU-0")],
            "2 processes have 1 different GPUs on 2 hosts: GPU-0 on a: rank 0; GPU-0 on b: rank 1",
        ),
        ([whole("a", f"GPU-{n // 2}") for n in range(20)], "GPU-7 on a: rank 14, 15; and 2 more\nhint: "),
    ],
)
def test_anything_else_is_refused(places: list[ProcessPlace], said: str) -> None:
    with pytest.raises(PlacementError) as caught:
        decide(places)
    assert said in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES" in str(caught.value)


def choose_together(places: list[ProcessPlace]) -> list[TransportChoice | str]:
    store, said = dist.HashStore(), dict[int, TransportChoice | str]()

    def ask(rank: int) -> None:
        try:
            said[rank] = choose_way(store, "first", rank, len(places), places[rank], SECOND * 30)
        except PlacementError as error:
            said[rank] = str(error)

    tasks: list[Callable[[], None]] = [lambda rank=rank: ask(rank) for rank in range(len(places))]
    in_threads(tasks)
    return [said[rank] for rank in range(len(places))]


def test_everyone_hears_the_same() -> None:
    assert choose_together([whole("a", f"GPU-{n}") for n in range(5)]) == [TransportChoice(Way.NCCL)] * 5
    assert choose_together([whole("a", "GPU-0")] * 5) == [TransportChoice(Way.SHARED_GPU)] * 5
    assert (
        choose_together([mig("a", 0), mig("a", 1), whole("a", "GPU-1")])
        == [TransportChoice(Way.NCCL, frozenset({0, 1}))] * 3
    )
    answers = choose_together([whole("a", "GPU-0"), whole("a", "GPU-0"), whole("a", "GPU-1")])
    assert len(set(answers)) == 1
    assert "3 processes have 2 different GPUs" in str(answers[0])


def test_processes_that_never_come_are_named() -> None:
    store = dist.HashStore()
    store.set("first/places/1", '["a", "GPU-1", "GPU-1"]')
    with pytest.raises(PlacementError, match=r"2 of 4 processes .*: ranks 2, 3"):
        choose_way(store, "first", 0, 4, whole("a", "GPU-0"), timedelta(milliseconds=20))


class Refusing(dist.Store):
    """As the coordinator's, when the workers are being regrouped."""

    def set(self, key: str, value: str | bytes) -> None: ...

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        raise StoreError("refused")


def test_a_refusal_is_nobodys_delay() -> None:
    store = Refusing()
    with pytest.raises(StoreError, match="refused"):
        choose_way(store, "first", 0, 4, whole("a", "GPU-0"), SECOND * 30)


class Properties(NamedTuple):
    uuid: str = "fa529bc3"


@pytest.mark.parametrize(
    ("setting", "device"),
    [(None, "fa529bc3"), ("3,4", "fa529bc3"), ("GPU-fa5", "fa529bc3"), (" MIG-3a49,MIG-7571", "MIG-3a49")],
)
def test_a_mig_device_goes_by_its_name(
    setting: str | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def properties(device: torch.device) -> Properties:
        return Properties()

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert place_of(CUDA) == ProcessPlace(socket.gethostname(), device, "fa529bc3")


def host_id_after_connecting(
    own: ProcessPlace, other: ProcessPlace, monkeypatch: pytest.MonkeyPatch
) -> str | None:
    """NCCL_HOSTID as NCCL finds it."""
    seen: list[str | None] = []

    def place(device: torch.device) -> ProcessPlace:
        return own

    def join(*told: object) -> None:
        seen.append(os.environ.get("NCCL_HOSTID"))

    monkeypatch.setattr(choose, "place_of", place)
    monkeypatch.setattr(choose, "join_over_nccl", join)
    store = dist.HashStore()
    store.set("first/places/1", json.dumps(other))
    connect(store, Grid([(0, 0), (0, 1)], 1, 1), (0, 0), 0, [], CUDA, SECOND * 30)
    return seen[0]


def test_nccl_takes_mig_devices_of_one_gpu_for_different_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set and taken away, so that the variable is as it was after the test.
    monkeypatch.setenv("NCCL_HOSTID", "")
    for other in (mig("a", 1, "GPU-1"), mig("b", 1), whole("a", "GPU-1")):
        monkeypatch.delenv("NCCL_HOSTID", raising=False)
        assert host_id_after_connecting(mig("a", 0), other, monkeypatch) is None
    assert host_id_after_connecting(mig("a", 0), mig("a", 1), monkeypatch) == "a/MIG-GPU-0-0"
    monkeypatch.setenv("NCCL_HOSTID", "mine")
    assert host_id_after_connecting(mig("a", 0), mig("a", 1), monkeypatch) == "mine"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Devices on which CUDA was started, without CUDA."""
    found: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    return found


def test_nccl_finds_its_variables_unless_workers_share_a_device(
    started: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "")
    for name, loading in ((SHARED_DEVICE, None), ("cuda", "EAGER")):
        monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
        assert device_of(name) == CUDA
        assert os.environ.get("CUDA_MODULE_LOADING") == loading
    assert started == [CUDA, CUDA]


def test_a_device_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("No CUDA GPUs are available\nmore")

    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-3a49")
    with pytest.raises(DeviceStartError) as caught:
        device_of(SHARED_DEVICE)
    assert str(caught.value).startswith("CUDA does not start on MIG-3a49: No CUDA GPUs are available\nhint: ")
