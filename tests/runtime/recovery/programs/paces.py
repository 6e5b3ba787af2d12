"""Code that is added to a program so that a job takes its time; its numbers stay the same."""

SLOW = """
import time

_loss = loss

def loss(output, target):
    time.sleep(0.05)
    return _loss(output, target)
"""
PACE = "PACE_OF_TESTS"
"""The variable with the file in which `PACED` finds the seconds for a micro-batch; without it, none."""
PACED = f"""
import os, time

_loss = loss

def loss(output, target):
    try:
        time.sleep(float(Path(os.environ["{PACE}"]).read_text() or 0))
    except (KeyError, FileNotFoundError, ValueError):
        pass
    return _loss(output, target)
"""
