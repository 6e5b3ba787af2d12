"""Things to train with: files, workers and devices, most of it checked before torch is loaded."""

from pathlib import Path

from recycle_runtime.cli.output import UsageError
from recycle_runtime.devices import DevicesError, WorkerDevices, worker_devices
from recycle_runtime.options.run import RunOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_choice import parse_workers


def check_files(options: RunOptions) -> None:
    """OSError if the plan or the program cannot be read."""
    for name in filter(None, (options.bundle, options.program)):
        Path(name).open("rb").close()


def worker_named(option: str, word: str) -> Worker:
    """The worker as the user wrote it after an option."""
    try:
        return parse_workers([word])[0]
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def check_device(name: str, workers: int = 1) -> WorkerDevices | None:
    """Devices of so many worker processes on this node, None on CPU; UsageError where they are not there.

    It loads torch for a GPU, and does not start CUDA: processes that are forked from this one could not.
    """
    if name == "cpu":
        return None
    try:
        devices = worker_devices(workers)
    except DevicesError as error:
        raise UsageError(f"--device {name}: {error}") from None
    import torch

    if not torch.backends.cuda.is_built():
        raise UsageError(
            f"--device {name}: this torch ({torch.__version__}) is built for CPU\n"
            "hint: install a build of torch for CUDA"
        )
    return devices
