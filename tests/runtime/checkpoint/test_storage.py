"""A state in files: what is read is what was written, or one sentence says what is wrong."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.checkpoint.storage import open_checked, write_shard
from recycle_runtime.state.host_copy import HostCopy
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.state.tree import put_together, take_apart

ABOUT = {"step": 7, "seed": 0, "stage": 1, "part": 0}
STATE: dict[str, Any] = {
    "model": {
        "weight": torch.arange(12.0).view(3, 4).t(),
        "running": torch.tensor(3),
        "none": torch.zeros(0, 2),
    },
    "optimizer": {
        "state": {0: {"step": torch.tensor(2.0), "exp_avg": torch.ones(4, dtype=torch.bfloat16)}, 3: {}},
        "param_groups": [
            {"betas": (0.9, 0.999), "lr": 1e-3, "foreach": None, "fused": False, "params": [0, 3]}
        ],
    },
}

values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(values)
def test_a_tree_goes_through_json(state: Any) -> None:
    tree, tensors = take_apart(state)
    assert tensors == {}
    assert put_together(json.loads(json.dumps(tree)), {}) == state


def test_tensors_are_named_by_their_place() -> None:
    one, two = torch.zeros(1), torch.ones(1)
    tree, tensors = take_apart({"a": {"b": one}, "a/b": two})
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"a/b": [0.0], "a/b'": [1.0]}
    assert put_together(tree, tensors)["a/b"].tolist() == [1.0]


def test_what_json_does_not_know_is_refused() -> None:
    with pytest.raises(CheckpointError, match="a/0: a checkpoint cannot keep a value of type object"):
        take_apart({"a": [object()]})
    with pytest.raises(CheckpointError, match="a key of type float"):
        take_apart({"a": {1.5: 0}})


def written(folder: Path) -> int:
    tree, tensors = take_apart(STATE)
    return write_shard(folder, ABOUT, tree, HostCopy().take(tensors))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def test_a_shard_is_read_as_it_was_written(tmp_path: Path) -> None:
    checksum = written(tmp_path / "shard")
    assert equal(open_checked(tmp_path / "shard", ABOUT, checksum).state(), STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["shard"]


def test_a_write_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    def proceed() -> None:
        raise KeyboardInterrupt

    tree, tensors = take_apart(STATE)
    with pytest.raises(KeyboardInterrupt):
        write_shard(tmp_path / "shard", ABOUT, tree, HostCopy().take(tensors), proceed)
    assert list(tmp_path.iterdir()) == []


def test_memory_is_used_again() -> None:
    memory = HostCopy()
    memory.prepare({"a": torch.ones(5)})
    first = memory.take({"a": torch.ones(5), "b": torch.zeros(3, dtype=torch.float64)})
    place = first["a"].data_ptr()
    second = memory.take({"a": torch.full((4,), 2.0)})
    assert second["a"].data_ptr() == place
    assert second["a"].tolist() == [2.0] * 4


def cut_short(folder: Path) -> None:
    data = (folder / "tensors.bin").read_bytes()
    (folder / "tensors.bin").write_bytes(data[:-1])


def flip(folder: Path) -> None:
    data = bytearray((folder / "tensors.bin").read_bytes())
    data[0] ^= 1
    (folder / "tensors.bin").write_bytes(data)


def no_tensors(folder: Path) -> None:
    (folder / "tensors.bin").unlink()


def no_json(folder: Path) -> None:
    (folder / "part.json").write_bytes(b"\x80\x04pickle")


def no_description(folder: Path) -> None:
    (folder / "part.json").unlink()


def edited(folder: Path) -> None:
    text = (folder / "part.json").read_text()
    (folder / "part.json").write_text(text.replace('"step": 7', '"step": 8'))


def foreign(folder: Path) -> None:
    (folder / "part.json").write_text('{"format": "something else"}')


def newer(folder: Path) -> None:
    (folder / "part.json").write_text('{"format": "recycle checkpoint part", "version": 3}')


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_short, "tensors.bin: damaged: "),
        (flip, "tensors.bin: damaged: the checksum of model/weight does not match"),
        (no_tensors, "tensors.bin: no such file or directory"),
        (no_json, "part.json: damaged: it is not JSON"),
        (no_description, "part.json: no such file or directory"),
        (edited, "part.json: damaged: the checksum does not match"),
        (foreign, "part.json: not a checkpoint part of recycle-run"),
        (newer, "part.json: made by a newer recycle-run: format 3, this one reads up to 2"),
    ],
)
def test_damage_is_said_in_a_sentence(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    checksum = written(tmp_path / "shard")
    damage(tmp_path / "shard")
    with pytest.raises(CheckpointError) as caught:
        open_checked(tmp_path / "shard", ABOUT, checksum).state()
    assert str(tmp_path / "shard") in str(caught.value) and said in str(caught.value)
    assert "\n" not in str(caught.value)


def resealed(folder: Path, **fields: Any) -> int:
    """A description that was changed by somebody who knows how to; its checksum."""
    content = json.loads((folder / "part.json").read_text()) | fields
    del content["crc32"]
    checksum = zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    (folder / "part.json").write_text(json.dumps(content | {"crc32": checksum}))
    return checksum


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"tensors": {"a": {"dtype": "float32", "shape": [1 << 40], "offset": 0, "size": 4, "crc32": 0}}},
            "sense",
        ),
        ({"tensors": {"a": {"dtype": "save", "shape": [], "offset": 0, "size": 4, "crc32": 0}}}, "sense"),
        ({"tensors": {"a": {"dtype": "int8", "shape": [-1], "offset": 0, "size": 4, "crc32": 0}}}, "sense"),
        ({"tensors": {"a": {"dtype": "int8", "shape": None}}}, "sense"),
        ({"tensors": {}}, "damaged"),
        ({"tensors": [1]}, "describes no state"),
        ({"tree": {"list": 3}}, "describes no state"),
        ({"tree": {"tensor": "nobody"}}, "describes no state"),
        ({"byte_order": "middle"}, "another byte order"),
        ({"about": None}, "describes no state"),
        ({"about": ABOUT | {"seed": 5}}, "has seed 5, and this run has 0"),
    ],
)
def test_descriptions_that_make_no_sense(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    written(tmp_path / "shard")
    checksum = resealed(tmp_path / "shard", **fields)
    with pytest.raises(CheckpointError, match=said):
        open_checked(tmp_path / "shard", ABOUT, checksum).state()


def test_another_checkpoints_part_is_not_taken(tmp_path: Path) -> None:
    checksum = written(tmp_path / "shard")
    with pytest.raises(CheckpointError, match="not the one that the manifest was written for"):
        open_checked(tmp_path / "shard", ABOUT, checksum + 1).state()
