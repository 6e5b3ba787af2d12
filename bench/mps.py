"""Many processes on one GPU, each with multiprocessors of its own, through NVIDIA's MPS."""

import os
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def mps(processes: int) -> Generator[None]:
    """Whatever is started inside gets an equal share of the GPU; for at most so many processes."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        ours = {
            "CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // processes),
        }
        for name in ("pipe", "log"):
            os.mkdir(f"{folder}/{name}")
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False, timeout=60)
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
