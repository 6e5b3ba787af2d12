"""GPUs and MIG devices as workers get them, known without starting CUDA. Standard library only."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from recycle_runtime.devices import (
    VARIABLE,
    Device,
    Gpu,
    ListingError,
    VisibleDevices,
    all_devices,
    listed_gpus,
    named_devices,
    names_of,
    visible_devices,
)
from recycle_runtime.doctor.findings import Finding

_DRIVER = Path("/proc/driver/nvidia/version")
_SECONDS = 60.0
"""For nvidia-smi."""
_MIB_PER_GIB = 1024
_PROFILE_MEMORY = re.compile(r"\.(\d+)gb")


class GpuMemory(NamedTuple):
    """Memory of a whole GPU in MiB."""

    size: int
    free: int


def listed_memory() -> dict[str, GpuMemory]:
    """Memory of whole GPUs by UUID; none where nvidia-smi does not say."""
    asked = ["nvidia-smi", "--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    rows = [[word.strip() for word in line.split(",")] for line in answer.stdout.splitlines()]
    numbers = [row for row in rows if len(row) == 3 and row[1].isdecimal() and row[2].isdecimal()]
    return {uuid: GpuMemory(int(size), int(free)) for uuid, size, free in numbers}


def devices(
    environment: Mapping[str, str] = os.environ,
    list_gpus: Callable[[], Sequence[Gpu]] = listed_gpus,
    list_memory: Callable[[], Mapping[str, GpuMemory]] = listed_memory,
) -> list[Finding]:
    """One row for each device, in the order in which workers get them, and for each that is not there."""
    setting = environment.get(VARIABLE)
    try:
        gpus = list_gpus()
    except ListingError as error:
        advice = "agents list GPUs with nvidia-smi: mend it" if _DRIVER.exists() else ""
        return [Finding("GPUs", f"none known: {error}", advice), *_unlisted(named_devices(setting))]
    if not gpus:
        return [Finding("GPUs", "none listed by nvidia-smi"), *_mistakes(visible_devices(setting, gpus))]
    visible = visible_devices(setting, gpus)
    rows: list[Finding] = []
    if not visible.devices and not visible.mistakes:
        rows.append(_hidden(setting, gpus))
    memory = list_memory() if visible.devices else {}
    rows += [_row(device, memory) for device in visible.devices]
    return [*rows, *_mistakes(visible)]


def _row(device: Device, memory: Mapping[str, GpuMemory]) -> Finding:
    assert device.gpu is not None
    subject, found = f"GPU {device.gpu.number}", device.gpu.model
    if device.is_mig:
        size = _PROFILE_MEMORY.search(device.profile)
        room = f", {size[1]} GB" if size else ""
        return Finding(f"{subject} MIG", f"{device.name}, {device.profile or 'part'} of {found}{room}")
    if (known := memory.get(device.uuid)) is None:
        return Finding(subject, found)
    advice = "others use most of its memory" if known.free < known.size / 2 else ""
    size, free = known.size / _MIB_PER_GIB, known.free / _MIB_PER_GIB
    return Finding(subject, f"{found}, {size:.0f} GiB ({free:.0f} free)", advice)


def _hidden(setting: str | None, gpus: Sequence[Gpu]) -> Finding:
    found = f"none visible: {VARIABLE}={setting!r} hides {names_of(all_devices(gpus))}"
    return Finding("GPUs", found, f"unset {VARIABLE} to train on them")


def _unlisted(visible: VisibleDevices) -> list[Finding]:
    rows = [Finding("device", f"{each.name}, named by {VARIABLE}, not checked") for each in visible.devices]
    return [*rows, *_mistakes(visible)]


def _mistakes(visible: VisibleDevices) -> list[Finding]:
    return [
        Finding("device", f"{entry}, named by {VARIABLE}: {why}", "name a device that is listed, once")
        for entry, why in visible.mistakes
    ]
