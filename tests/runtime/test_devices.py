"""Devices are told apart, given to workers one by one, and kept from other jobs."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recycle_runtime import devices as devices_module
from recycle_runtime.devices import (
    OWN_DEVICE,
    SHARED_DEVICE,
    VARIABLE,
    Device,
    DevicesError,
    DeviceTakenError,
    Gpu,
    ListingError,
    MigInstance,
    VisibleDevices,
    WorkerDevices,
    listed_gpus,
    lock_devices,
    named_devices,
    parse_listing,
    visible_devices,
    worker_devices,
)
from tests.runtime.nvidia_smi import FOUR, H200, LEGACY, MIG, MIXED, fake_nvidia_smi

FIRST = "MIG-3a49c8a9-0f9f-5f7d-b321-d50e2e18cc15"
SECOND = "MIG-7571955c-06af-503e-af5c-ecaaec272973"
THIRD = "MIG-7599efae-06af-503e-af5c-ecaaec272973"
OF_H200 = "GPU-fa529bc3-df9c-8e3c-22fb-c95e99d1c9dc"
AA0, AA1, BB2, CC3 = (line[line.index("GPU-") : -1] for line in FOUR.splitlines())
MIXED_0A, MIXED_0B = "MIG-0a000000-0000-5000-8000-000000000000", "MIG-0b000000-0000-5000-8000-000000000001"
MIXED_2A = "MIG-2a000000-0000-5000-8000-000000000002"
MIXED_BB = "GPU-bb111111-0000-0000-0000-000000000001"
OLD_1, OLD_13 = (f"MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/{instance}/0" for instance in (1, 13))


def test_a_listing_is_read() -> None:
    instances = (MigInstance("1g.18gb", FIRST), MigInstance("1g.18gb", SECOND))
    assert parse_listing(MIG) == (
        Gpu(0, "NVIDIA H200", OF_H200, (*instances, MigInstance("2g.35gb+me", THIRD))),
    )
    assert [(gpu.number, len(gpu.instances)) for gpu in parse_listing(MIXED)] == [(0, 2), (1, 0), (2, 1)]
    assert parse_listing("Unable to determine the device handle for gpu 0000:03:00.0\n" + H200) == (
        Gpu(0, "NVIDIA H200", OF_H200),
    )
    assert parse_listing("No devices found.\n") == ()


@pytest.mark.parametrize(
    ("listing", "setting", "names"),
    [
        (FOUR, None, ["0", "1", "2", "3"]),
        (FOUR, "", []),
        (FOUR, "-1", []),
        (FOUR, "NoDevFiles", []),
        (FOUR, "2,-1,0", ["2"]),
        (FOUR, "3,0", ["3", "0"]),
        (FOUR, " 1 , 2 ", ["1", "2"]),
        (FOUR, "0,", ["0"]),
        (FOUR, "GPU-bb", [BB2]),
        (FOUR, f"GPU-aa1,{CC3},0", [AA1, CC3, "0"]),
        (MIG, None, [FIRST, SECOND, THIRD]),
        (MIG, "0", [FIRST, SECOND, THIRD]),
        (MIG, "GPU-fa5", [FIRST, SECOND, THIRD]),
        (MIG, f"{THIRD},MIG-3a", [THIRD, FIRST]),
        (MIG, f"MIG-{OF_H200}/7/0", [f"MIG-{OF_H200}/7/0"]),
        (MIXED, None, [MIXED_0A, MIXED_0B, MIXED_BB, MIXED_2A]),
        # CUDA may count another GPU as number 1 where GPU 0 is in MIG mode.
        (MIXED, "1", [MIXED_BB]),
        (MIXED, "2,1", [MIXED_2A, MIXED_BB]),
        (MIXED, "GPU-bb,MIG-0b", [MIXED_BB, MIXED_0B]),
        (LEGACY, None, [OLD_1, OLD_13]),
        (LEGACY, OLD_13, [OLD_13]),
    ],
)
def test_what_is_named_is_found(listing: str, setting: str | None, names: list[str]) -> None:
    found = visible_devices(setting, parse_listing(listing))
    assert [device.name for device in found.devices] == names
    assert found.mistakes == ()


@pytest.mark.parametrize(
    ("listing", "setting", "entry", "why"),
    [
        (FOUR, "0,4", "4", "it is not there"),
        (FOUR, "GPU-dd", "GPU-dd", "it is not there"),
        (FOUR, "GPU-aa", "GPU-aa", "it fits 2 devices: GPU 0, GPU 1"),
        (FOUR, "0,1,0", "0", "GPU 0 is named twice"),
        (FOUR, "0,GPU-aa0", "GPU-aa0", "GPU 0 is named twice"),
        (FOUR, "first", "first", "it is not there"),
        (H200, FIRST, FIRST, "it is not there"),
        (H200, f"MIG-{OF_H200}/7/0", f"MIG-{OF_H200}/7/0", "it is not there"),
        (
            MIG,
            "MIG-75",
            "MIG-75",
            f"it fits 2 devices: {SECOND} (1g.18gb of GPU 0), {THIRD} (2g.35gb+me of GPU 0)",
        ),
        (MIG, f"{FIRST},0", "0", f"{FIRST} (1g.18gb of GPU 0) is named twice"),
        (LEGACY, OLD_1.replace("/1/", "/2/"), OLD_1.replace("/1/", "/2/"), "it is not there"),
    ],
)
def test_what_cannot_be_meant(listing: str, setting: str, entry: str, why: str) -> None:
    assert visible_devices(setting, parse_listing(listing)).mistakes == ((entry, why),)


def test_a_device_has_one_uuid_under_all_names() -> None:
    gpus = parse_listing(FOUR)
    for name in ("2", "GPU-bb", BB2):
        assert [device.uuid for device in visible_devices(name, gpus).devices] == [BB2]


def test_names_without_a_listing() -> None:
    assert named_devices("0, MIG-x") == VisibleDevices((Device("0", "0"), Device("MIG-x", "MIG-x")))
    assert named_devices("1,1").mistakes == (("1", "1 is named twice"),)
    assert named_devices(None) == named_devices("-1") == VisibleDevices(())


def chosen(workers: int, listing: str, setting: str | None = None) -> WorkerDevices:
    environment = {} if setting is None else {VARIABLE: setting}
    return worker_devices(workers, environment, lambda: parse_listing(listing))


def unlisted() -> tuple[Gpu, ...]:
    raise ListingError("nvidia-smi is not on the PATH")


def test_one_device_each_or_one_for_all() -> None:
    each = chosen(2, FOUR)
    assert [device.name for device in each.devices] == ["0", "1"]
    assert not each.is_shared
    assert chosen(12, FOUR, "2").is_shared
    assert not chosen(1, H200).is_shared
    assert [device.name for device in chosen(3, MIG, "0").devices] == [FIRST, SECOND, THIRD]


def test_names_are_used_unchecked_where_nothing_can_be_listed() -> None:
    found = worker_devices(2, {VARIABLE: "4,MIG-x"}, unlisted)
    assert found == WorkerDevices((Device("4", "4"), Device("MIG-x", "MIG-x")), 2)


@pytest.mark.parametrize(
    ("workers", "listing", "setting", "said"),
    [
        (8, FOUR, None, "4 devices for 8 workers of this node: GPU 0, GPU 1, GPU 2, GPU 3\nhint: give every"),
        (4, MIG, None, f"3 devices for 4 workers of this node: {FIRST} (1g.18gb of GPU 0), "),
        (1, FOUR, "7", "CUDA_VISIBLE_DEVICES names 7: it is not there; nvidia-smi lists GPU 0, GPU 1, "),
        (
            1,
            H200,
            FIRST,
            f"names {FIRST}: it is not there; nvidia-smi lists GPU 0\nhint: `recycle-run doctor`",
        ),
        (2, FOUR, "0,0", "names 0: GPU 0 is named twice; "),
        (1, "", None, "no GPU is known here: nvidia-smi lists none\nhint: "),
        (1, "", "0", "names 0: it is not there; nvidia-smi lists none\n"),
        (1, FOUR, "", "CUDA_VISIBLE_DEVICES='' hides all GPUs; nvidia-smi lists GPU 0, "),
        (1, H200, "-1", "CUDA_VISIBLE_DEVICES='-1' hides all GPUs; nvidia-smi lists GPU 0\nhint: unset "),
    ],
)
def test_devices_that_do_not_fit_the_workers(
    workers: int, listing: str, setting: str | None, said: str
) -> None:
    with pytest.raises(DevicesError) as caught:
        chosen(workers, listing, setting)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            None,
            "no GPU is known here: nvidia-smi is not on the PATH\nhint: name GPUs in CUDA_VISIBLE_DEVICES",
        ),
        ("", "CUDA_VISIBLE_DEVICES='' hides all GPUs; nvidia-smi is not on the PATH\n"),
        ("0,0", "CUDA_VISIBLE_DEVICES names 0: 0 is named twice; "),
    ],
)
def test_nothing_listed_and_nothing_named(setting: str | None, said: str) -> None:
    with pytest.raises(DevicesError) as caught:
        worker_devices(2, {} if setting is None else {VARIABLE: setting}, unlisted)
    assert said in str(caught.value)


def test_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ListingError, match="not on the PATH"):
        listed_gpus()
    fake_nvidia_smi(tmp_path, MIG)
    assert listed_gpus() == parse_listing(MIG)
    fake_nvidia_smi(tmp_path, "No devices found.\n", 6)
    assert listed_gpus() == ()
    fake_nvidia_smi(tmp_path, "it could not communicate with the driver\n", 9)
    with pytest.raises(
        ListingError, match=r"failed with status 9: it could not communicate with the driver$"
    ):
        listed_gpus()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nsleep 5\n")
    monkeypatch.setattr(devices_module, "_LISTED_WITHIN", 0.05)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ListingError, match="does not end within"):
        listed_gpus()


@pytest.mark.parametrize(
    ("workers", "listing", "setting", "used", "name"),
    [
        (2, FOUR, None, "1", OWN_DEVICE),
        (2, MIG, "0", SECOND, OWN_DEVICE),
        (2, FOUR, "GPU-bb,GPU-c", CC3, OWN_DEVICE),
        (2, H200, None, None, SHARED_DEVICE),
        (2, FOUR, "3", "3", SHARED_DEVICE),
        (2, MIG, "MIG-3a", FIRST, SHARED_DEVICE),
    ],
)
def test_a_worker_process_sees_its_device_alone(
    workers: int,
    listing: str,
    setting: str | None,
    used: str | None,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in (VARIABLE, "CUDA_DEVICE_ORDER"):
        # Set and taken away, so that the variable is as it was after the test.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    if setting is not None:
        monkeypatch.setenv(VARIABLE, setting)
    assert chosen(workers, listing, setting).use(1) == name
    assert os.environ.get(VARIABLE) == used
    assert ("CUDA_DEVICE_ORDER" in os.environ) == (used == "1")


# Locks.

GPUS = visible_devices(None, parse_listing(FOUR)).devices


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def let_go(held: tuple[int, ...]) -> None:
    for descriptor in held:
        os.close(descriptor)


def test_a_device_of_another_job_is_refused(tmp_path: Path) -> None:
    held = lock_devices(GPUS[:2], tmp_path / "first")
    with pytest.raises(DeviceTakenError) as caught:
        lock_devices((GPUS[2], GPUS[1]), tmp_path / "second", patience=0)
    said = (
        f"GPU 1 is in use by the agent with process number {os.getpid()} and --state {tmp_path / 'first'}\n"
    )
    assert str(caught.value).startswith(said)
    # Whoever is refused keeps none of the others.
    let_go(lock_devices(GPUS[2:], tmp_path / "third", patience=0))
    let_go(held)
    let_go(lock_devices(GPUS, tmp_path / "second", patience=0))


def test_the_same_gpu_under_another_name_is_refused(tmp_path: Path) -> None:
    held = lock_devices(GPUS[2:3], tmp_path / "first")
    with pytest.raises(DeviceTakenError, match="GPU 2 is in use"):
        lock_devices(visible_devices("GPU-bb", parse_listing(FOUR)).devices, tmp_path / "second", patience=0)
    let_go(held)


def test_legacy_names_have_files_too(tmp_path: Path) -> None:
    let_go(lock_devices(visible_devices(None, parse_listing(LEGACY)).devices, tmp_path, patience=0))


_AGENT = """
import os, sys, time
from pathlib import Path
from recycle_runtime.devices import Device, lock_devices

lock_devices([Device("0", sys.argv[1])], Path(sys.argv[2]))
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
os.wait()
"""


def test_workers_keep_the_device_of_an_agent_that_died(tmp_path: Path, temporary: Path) -> None:
    words = [sys.executable, "-c", _AGENT, GPUS[0].uuid, str(tmp_path / "first")]
    runtime = str(Path(devices_module.__file__).parents[1])
    environment = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": runtime}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as agent:
        assert agent.stdout is not None
        worker = int(agent.stdout.readline())
        agent.kill()
    try:
        with pytest.raises(DeviceTakenError, match=f"processes that were started by .* number {agent.pid} "):
            lock_devices(GPUS[:1], tmp_path / "second", patience=0)
        held = lock_devices(GPUS[:1], tmp_path / "first", patience=0)
    finally:
        os.kill(worker, signal.SIGKILL)
    # The next agent of the same folder has the device when the last worker of the first one has ended.
    with pytest.raises(DeviceTakenError, match=f"number {os.getpid()} "):
        lock_devices(GPUS[:1], tmp_path / "second", patience=0.3)
    let_go(held)
    let_go(lock_devices(GPUS[:1], tmp_path / "second"))


def test_a_job_goes_on_where_nothing_can_be_locked(
    tmp_path: Path, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (temporary / f"recycle-devices-{os.getuid()}").write_text("in the way")
    assert lock_devices(GPUS, tmp_path) == ()
    assert "cannot be locked" in caplog.text
