"""Rows about devices: those that workers will get, and those that they were promised."""

import pytest

from recycle_runtime.devices import VARIABLE, Gpu, ListingError, parse_listing
from recycle_runtime.doctor.devices import GpuMemory, devices
from recycle_runtime.doctor.findings import Finding
from tests.runtime.nvidia_smi import FOUR, H200, MIG, MIXED

MEMORY = {"GPU-fa529bc3-df9c-8e3c-22fb-c95e99d1c9dc": GpuMemory(143_771, 143_100)}


def rows(listing: str, setting: str | None = None) -> list[Finding]:
    environment = {} if setting is None else {VARIABLE: setting}
    return devices(environment, lambda: parse_listing(listing), lambda: MEMORY)


def unlisted() -> tuple[Gpu, ...]:
    raise ListingError("nvidia-smi is not on the PATH")


def test_a_whole_gpu_has_its_memory() -> None:
    assert rows(H200) == [Finding("GPU 0", "NVIDIA H200, 140 GiB (140 free)")]


def test_a_gpu_in_use_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEMORY, "GPU-fa529bc3-df9c-8e3c-22fb-c95e99d1c9dc", GpuMemory(143_771, 1024))
    assert rows(H200) == [Finding("GPU 0", "NVIDIA H200, 140 GiB (1 free)", "others use most of its memory")]


def test_a_mig_device_has_its_profile_and_its_gpu() -> None:
    assert rows(MIG)[0] == Finding(
        "GPU 0 MIG", "MIG-3a49c8a9-0f9f-5f7d-b321-d50e2e18cc15, 1g.18gb of NVIDIA H200, 18 GB"
    )
    assert [row.subject for row in rows(MIXED)] == ["GPU 0 MIG", "GPU 0 MIG", "GPU 1", "GPU 2 MIG"]
    assert [row.subject for row in rows(MIXED, "GPU-bb,MIG-0b")] == ["GPU 1", "GPU 0 MIG"]


def test_devices_that_are_not_there() -> None:
    first, second = rows(FOUR, "3,7")
    assert first.subject == "GPU 3"
    assert second.found == "7, named by CUDA_VISIBLE_DEVICES: it is not there"
    assert second.advice
    (gone,) = rows(H200, "MIG-3a49")
    assert gone.found == "MIG-3a49, named by CUDA_VISIBLE_DEVICES: it is not there"


def test_no_gpu() -> None:
    assert rows("") == [Finding("GPUs", "none listed by nvidia-smi")]
    (hidden,) = rows(H200, "-1")
    assert hidden.found == "none visible: CUDA_VISIBLE_DEVICES='-1' hides GPU 0"
    assert "unset" in hidden.advice


def test_nothing_is_listed() -> None:
    known, named = devices({VARIABLE: "MIG-x"}, unlisted)
    assert known.found == "none known: nvidia-smi is not on the PATH"
    assert named.found == "MIG-x, named by CUDA_VISIBLE_DEVICES, not checked"
