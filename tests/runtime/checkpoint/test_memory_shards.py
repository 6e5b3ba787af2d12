"""Shards in the memory of a node: what was put there comes back, and what is not whole does not count."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.checkpoint.manifest import CheckpointError
from recycle_runtime.checkpoint.memory_shards import (
    MemoryShards,
    free_others,
    pieces_in,
    read_file,
    read_piece,
    write_piece,
)
from recycle_runtime.checkpoint.storage import take_apart
from recycle_runtime.checkpoint.writer import Shard, copied, needed, restore_from, together
from recycle_runtime.protocol.node_memory import open_memory
from tests.runtime.checkpoint.test_moment import chunk_of

NAME = "copy-00000002.1.0"


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[int, ...]]:
    memory = open_memory(tmp_path, 1)
    yield memory.files
    for file in memory.files:
        os.close(file)


def keep(file: int, name: str, state: Any, shard: str = "layer-0-part-0") -> int:
    tree, tensors = take_apart(state)
    taken = Shard(shard, {"step": 2, "program": "x"}, tree, tensors)
    memory = MemoryShards(file)
    memory.prepare(together([taken]))
    copies = memory.take(together([taken]))
    own = {key.removeprefix(f"{shard}/"): tensor for key, tensor in copies.items()}
    return memory.finish(name, [taken._replace(tensors=own)])


STATE: dict[str, Any] = {
    "weight": torch.arange(6.0, dtype=torch.float64).view(2, 3),
    "steps": [1, None, {"x": (2.5, "y")}],
}


def test_what_is_kept_comes_back(files: tuple[int, ...]) -> None:
    size = keep(files[0], NAME, STATE)
    assert size == os.fstat(files[0]).st_size
    (piece,) = pieces_in(files, NAME)
    assert piece.names == ["layer-0-part-0"] and pieces_in(files, "copy-00000004.1.1") == []
    found = piece.state("layer-0-part-0", {"step": 2, "program": "x"})
    assert torch.equal(found["weight"], STATE["weight"]) and found["steps"] == STATE["steps"]


def test_the_next_copy_may_be_smaller(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, {"weight": torch.zeros(1000)})
    keep(files[0], "copy-00000004.1.1", STATE)
    piece = read_file(files[0])
    assert piece is not None and piece.copy == "copy-00000004.1.1"
    assert piece.state("layer-0-part-0", {"step": 2})["steps"] == STATE["steps"]


def test_it_can_be_sent_as_it_is(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    piece = read_file(files[0])
    assert piece is not None
    write_piece(files[2], piece.data.clone())
    first, second = pieces_in(files, NAME)
    assert torch.equal(first.data, second.data)


def test_a_copy_that_is_not_finished_counts_as_empty(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    _, tensors = take_apart(STATE)
    MemoryShards(files[0]).take(tensors)
    assert read_file(files[0]) is None and read_file(files[1]) is None


def test_damage_is_found(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    byte = os.pread(files[0], 1, 70)
    os.pwrite(files[0], bytes([byte[0] ^ 1]), 70)
    piece = read_file(files[0])
    assert piece is not None
    with pytest.raises(CheckpointError, match="layer-0-part-0 is damaged in memory"):
        piece.state("layer-0-part-0", {"step": 2})
    end = os.fstat(files[0]).st_size - 2
    os.pwrite(files[0], b"#", end)
    assert read_file(files[0]) is None
    assert read_piece(torch.zeros(64, dtype=torch.uint8)) is None


def test_another_step_or_program_is_refused(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    (piece,) = pieces_in(files, NAME)
    with pytest.raises(CheckpointError, match="has step 2, and this run has 3"):
        piece.state("layer-0-part-0", {"step": 3})


def test_memory_of_old_copies_is_given_back(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    keep(files[1], "copy-00000004.1.1", STATE)
    free_others(files, ["copy-00000004.1.1"])
    assert os.fstat(files[0]).st_size == 0 and read_file(files[1]) is not None


def test_a_chunk_becomes_what_was_copied(tmp_path: Path, files: tuple[int, ...]) -> None:
    chunk, other = chunk_of(tmp_path), chunk_of(tmp_path, seed=1)
    memory = MemoryShards(files[0])
    memory.finish(NAME, copied([chunk], memory))
    (piece,) = pieces_in(files, NAME)
    wanted = needed(chunk, 0)
    assert sorted(wanted) == sorted(piece.names)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(chunk.module.parameters(), other.module.parameters(), strict=True)
    )
    restore_from(other, {name: piece.state(name, about) for name, about in wanted.items()}, NAME)
    assert all(
        torch.equal(a, b) for a, b in zip(chunk.module.parameters(), other.module.parameters(), strict=True)
    )
    assert not other.is_fresh
