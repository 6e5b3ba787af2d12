"""Several devices out of one GPU that can be divided (MIG), as root: `python -m bench.mig COMMAND ...`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

DEVICES, PROFILE = 7, "19"
"""Of an H200, and the profile of each: 16 multiprocessors and 16 GiB."""


@contextmanager
def mig_devices() -> Generator[list[str]]:
    """Names of the devices; CUDA_VISIBLE_DEVICES has all of them meanwhile. Afterwards the GPU is whole."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    _make_whole()
    _smi("-mig", "1")
    try:
        _smi("mig", "-cgi", ",".join([PROFILE] * DEVICES), "-C")
        devices = re.findall(r"UUID: (MIG-[0-9a-f-]+)", _smi("-L"))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        yield devices
    finally:
        if said is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = said
        _make_whole()


def _make_whole() -> None:
    for words in (("mig", "-dci"), ("mig", "-dgi"), ("-mig", "0")):
        subprocess.run(["nvidia-smi", *words], capture_output=True)


def _smi(*words: str) -> str:
    return subprocess.run(["nvidia-smi", *words], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Run a command on six of seven devices."""
    with mig_devices() as devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices[:6])
        with subprocess.Popen(sys.argv[1:]) as command:
            # Ended from outside, it still leaves the GPU whole.
            def end(*_: object) -> None:
                command.terminate()

            signal.signal(signal.SIGTERM, end)
            status = command.wait()
    raise SystemExit(status)


if __name__ == "__main__":
    main()
