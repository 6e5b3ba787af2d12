"""Numbers for processes that no two nodes have in common. Needs no torch.

Containers number their processes from 1, so two workers on different nodes may well have the same number.
"""

import os
import secrets
from pathlib import Path

_PID_BITS = 22


def node_number(state: Path) -> int:
    """Of a node, kept in its agent's folder for the agent after this one."""
    path = state / "number"
    try:
        return int(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        number = secrets.randbits(30)
        state.mkdir(parents=True, exist_ok=True)
        aside = state / f"number.{os.getpid()}"
        aside.write_text(str(number), encoding="ascii")
        aside.replace(path)
        return number


def process_number(node: int, pid: int) -> int:
    """Of a process on a node."""
    return node << _PID_BITS | pid


def node_of(process: int) -> int:
    """The node of a process of this number."""
    return process >> _PID_BITS
