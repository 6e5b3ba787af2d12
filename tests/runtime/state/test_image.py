"""States as bytes, in memory and on the wire: what was put there comes back; what is not whole is nothing."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.protocol.node_memory import open_memory
from recycle_runtime.state.image import (
    MemoryImage,
    free_others,
    images_in,
    packed,
    read_file,
    read_image,
    write_image,
)
from recycle_runtime.state.layer_state import Clones, LayerState, apply_states, copied_state, needed, together
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.state.tree import take_apart
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
    taken = LayerState(shard, {"step": 2, "program": "x"}, tree, tensors)
    memory = MemoryImage(file)
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
    (image,) = images_in(files, NAME)
    assert image.names == ["layer-0-part-0"] and images_in(files, "copy-00000004.1.1") == []
    found = image.state("layer-0-part-0", {"step": 2, "program": "x"})
    assert torch.equal(found["weight"], STATE["weight"]) and found["steps"] == STATE["steps"]


def test_the_next_copy_may_be_smaller(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, {"weight": torch.zeros(1000)})
    keep(files[0], "copy-00000004.1.1", STATE)
    image = read_file(files[0])
    assert image is not None and image.name == "copy-00000004.1.1"
    assert image.state("layer-0-part-0", {"step": 2})["steps"] == STATE["steps"]


def test_it_can_be_sent_as_it_is(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    image = read_file(files[0])
    assert image is not None
    write_image(files[2], image.data.clone())
    first, second = images_in(files, NAME)
    assert torch.equal(first.data, second.data)


def test_a_copy_that_is_not_finished_counts_as_empty(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    _, tensors = take_apart(STATE)
    MemoryImage(files[0]).take(tensors)
    assert read_file(files[0]) is None and read_file(files[1]) is None


def test_damage_is_found(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    byte = os.pread(files[0], 1, 70)
    os.pwrite(files[0], bytes([byte[0] ^ 1]), 70)
    image = read_file(files[0])
    assert image is not None
    with pytest.raises(CheckpointError, match="layer-0-part-0 is damaged in memory"):
        image.state("layer-0-part-0", {"step": 2})
    end = os.fstat(files[0]).st_size - 2
    os.pwrite(files[0], b"#", end)
    assert read_file(files[0]) is None
    assert read_image(torch.zeros(64, dtype=torch.uint8)) is None


def test_another_step_or_program_is_refused(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    (image,) = images_in(files, NAME)
    with pytest.raises(CheckpointError, match="has step 2, and this run has 3"):
        image.state("layer-0-part-0", {"step": 3})


def test_memory_of_old_copies_is_given_back(files: tuple[int, ...]) -> None:
    keep(files[0], NAME, STATE)
    keep(files[1], "copy-00000004.1.1", STATE)
    free_others(files, ["copy-00000004.1.1"])
    assert os.fstat(files[0]).st_size == 0 and read_file(files[1]) is not None


def test_a_chunk_becomes_what_was_copied(tmp_path: Path, files: tuple[int, ...]) -> None:
    chunk, other = chunk_of(tmp_path), chunk_of(tmp_path, seed=1)
    memory = MemoryImage(files[0])
    memory.finish(NAME, copied_state([chunk], memory))
    (image,) = images_in(files, NAME)
    wanted = needed(chunk, 0)
    assert sorted(wanted) == sorted(image.names)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(chunk.module.parameters(), other.module.parameters(), strict=True)
    )
    apply_states(other, {name: image.state(name, about) for name, about in wanted.items()}, NAME)
    assert all(
        torch.equal(a, b) for a, b in zip(chunk.module.parameters(), other.module.parameters(), strict=True)
    )
    assert not other.is_fresh


def test_the_same_bytes_are_sent(tmp_path: Path, files: tuple[int, ...]) -> None:
    """Into another chunk, which makes steps already: the stepper stays where it is."""
    chunk, other = chunk_of(tmp_path), chunk_of(tmp_path, seed=1)
    with torch.no_grad():
        for parameter in chunk.module.parameters():
            parameter.add_(1.0)
    other.stepper.load_state_dict({**other.stepper.state_dict(), "steps": 7})
    image = read_image(packed("state", copied_state([chunk], Clones()), {"inputs": [["float32", 2]]}))
    assert image is not None and image.note == {"inputs": [["float32", 2]]}
    states = {name: image.state(name, about) for name, about in needed(chunk, 0).items()}
    apply_states(other, states, NAME, is_stepping=True)
    assert other.applied == 7 and other.is_part_of_run
    assert all(
        torch.equal(a, b) for a, b in zip(chunk.module.parameters(), other.module.parameters(), strict=True)
    )


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.integers(), inner),
))  # fmt: skip
def test_every_plain_value_comes_back(value: Any) -> None:
    tree, tensors = take_apart({"value": value, "tensor": torch.arange(3)})
    image = read_image(packed("state", [LayerState("layer-0-part-0", {}, tree, tensors)]))
    assert image is not None
    found = image.state("layer-0-part-0")
    assert found["value"] == value and type(found["value"]) is type(value)
    assert torch.equal(found["tensor"], torch.arange(3))


def test_nothing_that_arrives_is_executed() -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return print, ("executed",)

    with pytest.raises(CheckpointError, match="cannot keep a value of type Evil"):
        take_apart({"model": Evil()})
    assert read_image(torch.frombuffer(bytearray(pickle.dumps(print)) * 9, dtype=torch.uint8)) is None


_WITHOUT_NUMPY = """
import sys, warnings
sys.modules["numpy"] = None
warnings.simplefilter("ignore")
import torch
from recycle_runtime.state.image import packed, read_image
from recycle_runtime.state.layer_state import LayerState
from recycle_runtime.state.tree import take_apart
image = read_image(packed("state", [LayerState("one", {}, *take_apart({"weight": torch.arange(5.0)}))]))
assert torch.equal(image.state("one")["weight"], torch.arange(5.0))
"""


def test_numpy_is_not_needed() -> None:
    """Torch works without it, and so does the runtime."""
    done = subprocess.run([sys.executable, "-c", _WITHOUT_NUMPY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
