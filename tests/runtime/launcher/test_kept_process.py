"""Processes that a parent keeps hear how it asks them to end."""

import signal
import subprocess
import sys
from functools import partial

from recycle_runtime.launcher import kept_process


def test_a_job_started_in_the_background_of_a_script_hears_its_parent() -> None:
    """A shell has it ignore SIGINT, which the first node passes on to its coordinator."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        heard = subprocess.run(
            [sys.executable, "-c", code],
            preexec_fn=partial(kept_process._stand_apart, ()),  # pyright: ignore[reportPrivateUsage]
            capture_output=True,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard.stdout == "True\n"
