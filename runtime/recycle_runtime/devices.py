"""GPUs and MIG devices of this machine, which worker process gets which, and locks on them.

    CUDA_VISIBLE_DEVICES   nvidia-smi -L                       workers get
    not set                GPU 0, GPU 1                        0 | 1
    GPU-fa5                GPU 0: GPU-fa529bc3-...             GPU-fa529bc3-...
    0                      GPU 0, MIG mode on, two devices     MIG-3a49c8a9-... | MIG-7571955c-...

CUDA is never started here: children that are forked from a process with CUDA cannot use it. Standard library
only.
"""

import fcntl
import json
import logging
import os
import re
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

VARIABLE = "CUDA_VISIBLE_DEVICES"
OWN_DEVICE, SHARED_DEVICE = "cuda", "shared cuda"
"""Device of a worker process: one that no other worker uses, or one that all workers of the node share."""

_ORDER = "CUDA_DEVICE_ORDER"
_LISTED_WITHIN = 60.0
"""Seconds for nvidia-smi; drivers that are not kept loaded take several for each GPU."""
_RELEASED_WITHIN = 5.0
"""Seconds that a device may stay locked by workers of a job that has just been ended."""
_TRIED_EVERY = 0.1
_MOST_LISTED = 16
"""Devices named in one message."""
_MOST_BYTES = 8192
"""Of a lock's file: a path and a number."""

_GPU = re.compile(r"GPU (\d+): (.*) \(UUID: (GPU-[^)\s]+)\)")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)")
_LEGACY = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+")
_NO_GPU = re.compile(r"no devices", re.IGNORECASE)
_END = re.compile(r"-\d+|NoDevFiles|")
"""Entry of CUDA_VISIBLE_DEVICES that ends the list, as in CUDA; the second is what Slurm writes."""

_LOGGER = logging.getLogger(__name__)


class ListingError(Exception):
    """nvidia-smi is missing or fails, in one sentence."""


class DevicesError(Exception):
    """Devices and workers of this node that do not fit together: one sentence and a hint."""

    def __init__(self, sentence: str, hint: str) -> None:
        super().__init__(f"{sentence}\nhint: {hint}")


class DeviceTakenError(DevicesError):
    """A device that another job's agent has given to a worker."""


class MigInstance(NamedTuple):
    """Part of a GPU in MIG mode."""

    profile: str
    """Compute slices and memory, such as `1g.18gb`."""
    uuid: str


class Gpu(NamedTuple):
    """One GPU as nvidia-smi lists it."""

    number: int
    model: str
    uuid: str
    instances: tuple[MigInstance, ...] = ()
    """Not empty in MIG mode: then CUDA runs on these alone."""


class Device(NamedTuple):
    """Whole GPU or MIG device, for one worker process to compute on."""

    name: str
    """As CUDA_VISIBLE_DEVICES takes it."""
    uuid: str
    """The same under every name of the device; its name where nvidia-smi has not listed it."""
    gpu: Gpu | None = None
    """The GPU that it is, or is part of; None where nvidia-smi has not listed it."""
    profile: str = ""
    """Of a MIG device, where nvidia-smi has listed it."""

    @property
    def is_mig(self) -> bool:
        return self.name.startswith("MIG-")

    def __str__(self) -> str:
        if self.gpu is None:
            return self.name
        if not self.is_mig:
            return f"GPU {self.gpu.number}"
        return f"{self.name} ({self.profile or 'MIG'} of GPU {self.gpu.number})"


class Mistake(NamedTuple):
    """An entry of CUDA_VISIBLE_DEVICES that cannot be used."""

    entry: str
    why: str


class VisibleDevices(NamedTuple):
    """Devices that CUDA_VISIBLE_DEVICES lets workers use, in its order."""

    devices: tuple[Device, ...]
    mistakes: tuple[Mistake, ...] = ()


class WorkerDevices(NamedTuple):
    """Devices of the worker processes of one node."""

    devices: tuple[Device, ...]
    """One for each worker, by its line on the board; or a single one for all of them."""
    workers: int

    @property
    def is_shared(self) -> bool:
        return len(self.devices) < self.workers

    def use(self, line: int) -> str:
        """Make a worker's device the only one that this process sees; OWN_DEVICE or SHARED_DEVICE.

        For a worker process that has just been forked: CUDA reads the environment when it starts.
        """
        device = self.devices[0] if self.is_shared else self.devices[line]
        if self.is_shared and device.name.isdecimal():
            # A server of MPS that was started with some of the GPUs numbers them anew for its clients, so
            # indices stay as the user has set them.
            return SHARED_DEVICE
        os.environ[VARIABLE] = device.name
        if device.name.isdecimal():
            # An index means the GPU that nvidia-smi shows under it, also beside faster ones.
            os.environ.setdefault(_ORDER, "PCI_BUS_ID")
        return SHARED_DEVICE if self.is_shared else OWN_DEVICE


def listed_gpus() -> tuple[Gpu, ...]:
    """GPUs and MIG devices that nvidia-smi lists; ListingError if it cannot."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LISTED_WITHIN,
        )
    except FileNotFoundError:
        raise ListingError("nvidia-smi is not on the PATH") from None
    except subprocess.TimeoutExpired:
        raise ListingError(f"nvidia-smi -L does not end within {_LISTED_WITHIN:.0f} s") from None
    except OSError as error:
        raise ListingError(f"nvidia-smi cannot be run: {(error.strerror or str(error)).lower()}") from None
    gpus, said = parse_listing(done.stdout), f"{done.stdout}\n{done.stderr}".strip()
    if gpus or done.returncode == 0 or _NO_GPU.search(said):
        return gpus
    raise ListingError(f"nvidia-smi -L failed with status {done.returncode}: {said.partition(chr(10))[0]}")


def parse_listing(text: str) -> tuple[Gpu, ...]:
    """GPUs in what `nvidia-smi -L` prints; lines about anything else are skipped."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        if found := _GPU.match(line):
            gpus.append(Gpu(int(found[1]), found[2], found[3]))
        elif gpus and (found := _MIG.match(line)):
            more = MigInstance(found[1], found[2])
            gpus[-1] = gpus[-1]._replace(instances=(*gpus[-1].instances, more))
    return tuple(gpus)


def visible_devices(setting: str | None, gpus: Sequence[Gpu]) -> VisibleDevices:
    """Devices that this value of CUDA_VISIBLE_DEVICES, or None for none, means among these GPUs."""
    if setting is None:
        return VisibleDevices(tuple(device for gpu in gpus for device in _devices_of(gpu, gpus)))
    found: dict[str, Device] = {}
    mistakes: list[Mistake] = []
    for entry in _entries(setting):
        devices = _meant(entry, gpus)
        if not devices:
            mistakes.append(Mistake(entry, "it is not there"))
        elif _is_ambiguous(entry, devices):
            mistakes.append(Mistake(entry, f"it fits {len(devices)} devices: {names_of(devices)}"))
        else:
            again = [device for device in devices if device.uuid in found]
            mistakes += [Mistake(entry, f"{device} is named twice") for device in again]
            found |= {device.uuid: device for device in devices if device.uuid not in found}
    return VisibleDevices(tuple(found.values()), tuple(mistakes))


def named_devices(setting: str | None) -> VisibleDevices:
    """Devices as CUDA_VISIBLE_DEVICES names them, where nothing is known about them."""
    entries = _entries(setting or "")
    unique = dict.fromkeys(entries)
    twice = [entry for entry in unique if entries.count(entry) > 1]
    return VisibleDevices(
        tuple(Device(entry, entry) for entry in unique),
        tuple(Mistake(entry, f"{entry} is named twice") for entry in twice),
    )


def worker_devices(
    workers: int,
    environment: Mapping[str, str] = os.environ,
    list_gpus: Callable[[], Sequence[Gpu]] = listed_gpus,
) -> WorkerDevices:
    """One device for each worker process of this node, or one for all of them; DevicesError if neither."""
    setting = environment.get(VARIABLE)
    try:
        gpus = list_gpus()
        known = f"nvidia-smi lists {names_of(all_devices(gpus)) or 'none'}"
        visible = visible_devices(setting, gpus)
    except ListingError as error:
        known, visible = str(error), named_devices(setting)
    if visible.mistakes:
        raise _bad_setting(visible.mistakes[0], known)
    if not visible.devices:
        raise _no_gpu(setting, known)
    count = len(visible.devices)
    if 1 < count < workers:
        raise DevicesError(
            f"{count} devices for {workers} workers of this node: {names_of(visible.devices)}",
            f"give every worker a device of its own, or name one for all of them in {VARIABLE}",
        )
    return WorkerDevices(visible.devices[:workers], workers)


def all_devices(gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """Every device of this machine."""
    return visible_devices(None, gpus).devices


def names_of(devices: Sequence[Device]) -> str:
    """A list of devices for a message."""
    more = f" and {len(devices) - _MOST_LISTED} more" if len(devices) > _MOST_LISTED else ""
    return ", ".join(map(str, devices[:_MOST_LISTED])) + more


def lock_devices(
    devices: Sequence[Device], state: Path, patience: float = _RELEASED_WITHIN
) -> tuple[int, ...]:
    """Keep devices for the agent with this folder, until it and all that it forks have ended, or closed what
    this returns; DeviceTakenError if another job has one.

    An agent with the same folder may take them again: workers of the agent before it still have them.
    """
    deadline, held = time.monotonic() + patience, list[int]()
    try:
        folder = _lock_folder()
        for device in devices:
            held.append(_lock(device, folder, os.path.realpath(state), deadline))
    except DeviceTakenError:
        for descriptor in held:
            os.close(descriptor)
        raise
    except OSError as error:
        # As on a disk that is full: locks guard against a mistake, and no job should need them.
        _LOGGER.warning("another job could use the same devices, they cannot be locked: %s", error)
    return tuple(held)


def _entries(setting: str) -> list[str]:
    entries: list[str] = []
    for entry in map(str.strip, setting.split(",")):
        if _END.fullmatch(entry):
            break
        entries.append(entry)
    return entries


def _devices_of(gpu: Gpu, gpus: Sequence[Gpu], name: str | None = None) -> tuple[Device, ...]:
    """A GPU, under this name if it is whole, or its MIG devices."""
    if gpu.instances:
        return tuple(Device(each.uuid, each.uuid, gpu, each.profile) for each in gpu.instances)
    if name is None or name.isdecimal():
        # CUDA counts otherwise than nvidia-smi where some GPUs are in MIG mode.
        name = gpu.uuid if any(each.instances for each in gpus) else str(gpu.number)
    return (Device(name, gpu.uuid, gpu),)


def _meant(entry: str, gpus: Sequence[Gpu]) -> tuple[Device, ...]:
    """Devices that an entry means: none if nothing fits it, MIG devices for a GPU in MIG mode."""
    if entry.isdecimal():
        return tuple(
            device for gpu in gpus if gpu.number == int(entry) for device in _devices_of(gpu, gpus, entry)
        )
    if entry.startswith("GPU-"):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return tuple(device for gpu in found for device in _devices_of(gpu, gpus, gpu.uuid))
    devices = all_devices(gpus)
    if legacy := _LEGACY.fullmatch(entry):
        # Newer drivers list a MIG device by a UUID of its own, and still know it by this name.
        listed = [device for device in devices if device.name == entry]
        parents = [gpu for gpu in gpus if gpu.uuid == legacy[1] and gpu.instances]
        has_legacy = any(_LEGACY.fullmatch(device.name) for device in devices)
        return tuple(listed) or tuple(Device(entry, entry, gpu) for gpu in parents if not has_legacy)
    if entry.startswith("MIG-"):
        return tuple(device for device in devices if device.is_mig and device.name.startswith(entry))
    return ()


def _is_ambiguous(entry: str, devices: Sequence[Device]) -> bool:
    """Several devices fit it, and they are not all those of one GPU that it names."""
    if entry.startswith("MIG-"):
        return len(devices) > 1
    return len({device.gpu for device in devices}) > 1


def _no_gpu(setting: str | None, known: str) -> DevicesError:
    if setting is not None:
        return DevicesError(
            f"{VARIABLE}={setting!r} hides all GPUs; {known}", f"unset {VARIABLE}, or name GPUs in it"
        )
    hint = f"name GPUs in {VARIABLE}, such as 0,1, where nvidia-smi cannot list them; or use --device cpu"
    return DevicesError(f"no GPU is known here: {known}", hint)


def _bad_setting(mistake: Mistake, known: str) -> DevicesError:
    hint = "`recycle-run doctor` lists devices; their names change when MIG mode is switched on or off"
    return DevicesError(f"{VARIABLE} names {mistake.entry}: {mistake.why}; {known}", hint)


def _lock_folder() -> Path:
    """A folder of this user alone; OSError if there can be none."""
    folder = Path(tempfile.gettempdir(), f"recycle-devices-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder of this user")
    return folder


def _lock(device: Device, folder: Path, state: str, deadline: float) -> int:
    path = folder / device.uuid.replace("/", "-")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while not _try_lock(handle, state):
            if time.monotonic() > deadline:
                raise DeviceTakenError(
                    f"{device} is in use by {_holder_text(handle)}",
                    f"end that job, or name other devices in {VARIABLE}",
                )
            time.sleep(_TRIED_EVERY)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _try_lock(handle: int, state: str) -> bool:
    """Take a shared lock, which the next agent with the same folder can hold beside this one's workers."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Written before others can have a shared lock: its last holder would take an old file for its own.
        _write_holder(handle, state)
    except BlockingIOError:
        if _holder(handle).get("state") != state:
            return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    _write_holder(handle, state)
    return True


def _write_holder(handle: int, state: str) -> None:
    content = json.dumps({"state": state, "pid": os.getpid()}).encode()
    os.ftruncate(handle, 0)
    os.pwrite(handle, content, 0)


def _holder(handle: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(handle, _MOST_BYTES, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _holder_text(handle: int) -> str:
    holder = _holder(handle)
    if not holder:
        return "another job"
    who = f"the agent with process number {holder.get('pid')} and --state {holder.get('state')}"
    return who if Path(f"/proc/{holder.get('pid')}").exists() else f"processes that were started by {who}"
