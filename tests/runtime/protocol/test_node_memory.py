"""Memory of a node outlives the processes that write to it, and the agent that has opened it."""

import os
from pathlib import Path

from recycle_runtime.protocol.node_memory import NodeMemory, empty, note_memory, open_memory


def close(memory: NodeMemory) -> None:
    for file in memory.files:
        os.close(file)


def test_every_process_has_files_of_its_own(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, 2)
    places = [memory.file(line, kind, slot) for line in (0, 1) for kind in ("own", "held") for slot in (0, 1)]
    assert tuple(places) == memory.files
    close(memory)


def test_what_a_process_has_written_is_there_when_it_is_gone(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, 1)
    file = memory.file(0, "own", 1)
    if (pid := os.fork()) == 0:
        os.pwrite(file, b"state", 0)
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.pread(file, 5, 0) == b"state"
    empty(file)
    assert os.fstat(file).st_size == 0
    close(memory)


def test_an_agent_gets_it_from_a_process_that_runs(tmp_path: Path) -> None:
    """This one: with the same memory, and other descriptors for it."""
    memory = open_memory(tmp_path, 1)
    note_memory(tmp_path, memory)
    os.pwrite(memory.file(0, "held", 0), b"state", 0)
    again = open_memory(tmp_path, 1, [os.getpid()])
    assert again.number == memory.number and not set(again.files) & set(memory.files)
    assert os.pread(again.file(0, "held", 0), 5, 0) == b"state"
    close(again)
    other = open_memory(tmp_path, 2, [os.getpid()])
    assert other.number != memory.number
    close(other)
    close(memory)


def test_memory_that_nobody_has_any_more_is_new(tmp_path: Path) -> None:
    memory = open_memory(tmp_path, 1)
    note_memory(tmp_path, memory)
    close(memory)
    again = open_memory(tmp_path, 1, [os.getpid()])
    assert again.number != memory.number
    close(again)
    (tmp_path / "memory.json").write_text("[1", encoding="utf-8")
    close(open_memory(tmp_path, 1, [os.getpid()]))
