"""The torch that is installed, and whether it can use GPUs."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from recycle_runtime.doctor.findings import Finding

_OLDEST = (2, 6)


def torch_build() -> list[Finding]:
    """Version, transports and CUDA; one row if there is no torch, or it cannot be loaded."""
    if importlib.util.find_spec("torch") is None:
        return [Finding("torch", "not installed", "training needs it: `pip install 'recyclec[runtime]'`")]
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:
        return [Finding("torch", f"cannot be loaded: {error}", "install a build for this machine")]
    rows = [_version(torch.__version__)]
    if not dist.is_available() or not dist.is_gloo_available():
        rows.append(Finding("gloo", "not in this build", "workers on CPU talk over gloo: use another build"))
    else:
        rows.append(Finding("gloo", "available"))
    if not torch.cuda.is_available():
        return [*rows, Finding("CUDA", _without_gpu(torch))]
    return [*rows, Finding("CUDA", f"{torch.version.cuda}, driver {_driver()}"), _nccl(torch), _mps()]


def _version(version: str) -> Finding:
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    advice = f"{'.'.join(map(str, _OLDEST))} or newer is needed" if numbers < _OLDEST else ""
    return Finding("torch", version, advice)


def _without_gpu(torch: Any) -> str:
    if torch.version.cuda is None:
        return "none: this torch is built for CPU"
    return f"{torch.version.cuda}, driver {_driver()}: torch finds no GPU that it can use"


def _driver() -> str:
    try:
        first = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    except OSError:
        return "unknown"
    numbers = re.search(r"\d+\.\d+(\.\d+)?", first)
    return numbers[0] if numbers else "unknown"


def _nccl(torch: Any) -> Finding:
    try:
        return Finding("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    except (AttributeError, RuntimeError):
        return Finding(
            "NCCL", "not in this build", "workers on several GPUs talk over NCCL: use another build"
        )


def _mps() -> Finding:
    """True if several processes can compute on one GPU at a time."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if not Path(folder, "control").exists():
        advice = "several workers on one GPU take turns without it: `nvidia-cuda-mps-control -d`"
        return Finding("MPS", "not running", advice)
    try:
        asked = subprocess.run(
            ["nvidia-cuda-mps-control"], input="get_server_list\n", capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return Finding("MPS", f"does not answer at {folder}", "restart its control daemon")
    return Finding("MPS", f"at {folder}, servers: {' '.join(asked.stdout.split()) or 'none yet'}")
