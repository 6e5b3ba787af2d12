"""Safetensors: what is read is what was written, or one sentence says what is wrong."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from recycle_runtime.weights.named import open_weights
from recycle_runtime.weights.safetensors import INDEX, SINGLE, WeightsError, write_file, write_folder

TENSORS = {
    "a.weight": torch.arange(12.0).view(3, 4).t(),
    "a.bias": torch.arange(3, dtype=torch.int8),
    "half": torch.ones(7, dtype=torch.bfloat16) / 3,
    "nothing": torch.zeros(0, 2),
    "number": torch.tensor(2.5, dtype=torch.float64),
    "truth": torch.tensor([True, False, True]),
}


def same(found: Any, expected: dict[str, torch.Tensor]) -> None:
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_one_file(tmp_path: Path) -> None:
    assert write_folder(tmp_path, TENSORS, 1 << 30) == [tmp_path / SINGLE]
    same(open_weights(tmp_path), TENSORS)
    same(open_weights(str(tmp_path / SINGLE)), TENSORS)


def test_several_files_and_their_index(tmp_path: Path) -> None:
    written = write_folder(tmp_path, TENSORS, 20)
    assert written[-1] == tmp_path / INDEX
    assert len(written) > 3
    same(open_weights(tmp_path), TENSORS)
    assert json.loads((tmp_path / INDEX).read_text())["metadata"]["total_size"] == sum(
        tensor.nbytes for tensor in TENSORS.values()
    )


def test_changing_what_was_read_changes_no_file(tmp_path: Path) -> None:
    write_folder(tmp_path, TENSORS, 1 << 30)
    open_weights(tmp_path)["a.weight"].zero_()
    same(open_weights(tmp_path), TENSORS)


def test_as_the_library_of_the_format_reads_and_writes(tmp_path: Path) -> None:
    write_file(tmp_path / "ours.safetensors", TENSORS)
    same(load_file(tmp_path / "ours.safetensors"), TENSORS)
    plain = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    save_file(plain, tmp_path / "theirs.safetensors")
    same(open_weights(tmp_path / "theirs.safetensors"), TENSORS)


def test_a_state_dict_of_torch(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    same(open_weights(tmp_path), TENSORS)
    same(open_weights(tmp_path / "pytorch_model.bin"), TENSORS)
    same(open_weights(TENSORS), TENSORS)


def raw(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def about(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "header too small"),
        (b"\xff" * 40, "header too large"),
        (raw(b"[1]"), "invalid JSON in header"),
        (raw(b"{{}}"), "invalid JSON in header"),
        (raw(b"[" * 50_000), "invalid JSON in header"),
        (raw({"a": 1}), "invalid JSON in header"),
        (raw({"a": about("F12", [1], 0, 4)}), "unknown variant `F12`"),
        (raw({"a": about("F32", [-1], 0, 4)}), "invalid value"),
        (raw({"a": about("F32", [True], 0, 4)}, b"1234"), "invalid type"),
        (raw({"a": about("F32", [2], 0, 4)}, b"1234"), "invalid shape, data type, or offset"),
        (raw({"a": about("F32", [1], 4, 8)}, b"12345678"), "invalid offset for tensor `a`"),
        (raw({"a": about("F32", [1], 0, 4), "b": about("F32", [1], 0, 4)}, b"1234"), "invalid offset"),
        (raw({"a": about("F32", [1], 0, 4)}, b"123"), "file not fully covered"),
        (raw({"a": about("F32", [1], 0, 4)}, b"12345"), "file not fully covered"),
    ],
)
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=f"damaged, or not a safetensors file: .*{words}") as caught:
        open_weights(path)
    assert str(caught.value).startswith(str(path))


def test_tensors_that_are_not_aligned(tmp_path: Path) -> None:
    """The format aligns nothing but the header."""
    numbers = torch.tensor([1.5, -2.0])
    header = {"odd": about("U8", [1], 0, 1), "numbers": about("F32", [2], 1, 9)}
    (tmp_path / SINGLE).write_bytes(raw(header, b"\x07" + struct.pack("<2f", *numbers.tolist())))
    same(open_weights(tmp_path), {"odd": torch.tensor([7], dtype=torch.uint8), "numbers": numbers})


def test_the_library_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, TENSORS, 1 << 30)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(WeightsError, match=r"pip install 'recyclec\[runtime\]'"):
        open_weights(tmp_path)


@given(place=st.integers(0, 400), value=st.integers(0, 255))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_byte_changed(tmp_path: Path, place: int, value: int) -> None:
    """Never anything but tensors or a sentence; bytes of tensors have no checksum in this format."""
    path = tmp_path / "changed.safetensors"
    write_file(path, TENSORS)
    data = bytearray(path.read_bytes())
    data[place % len(data)] = value
    path.write_bytes(data)
    try:
        found = open_weights(path)
        assert all(isinstance(found[name], torch.Tensor) for name in found)
    except WeightsError as error:
        assert str(error).startswith(str(path))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"{", "not JSON"),
        (b"{}", "no `weight_map`"),
        (b'{"weight_map": {"a": "../other.safetensors"}}', "not the name of a file beside it"),
        (b'{"weight_map": {"a": 3}}', "not the name of a file beside it"),
        (b'{"weight_map": {"a": "none.safetensors"}}', "no such file"),
        (b'{"weight_map": {"b": "one.safetensors"}}', "b is not in one.safetensors"),
    ],
)
def test_an_index_that_leads_nowhere(tmp_path: Path, index: bytes, words: str) -> None:
    write_file(tmp_path / "one.safetensors", {"a": torch.zeros(1)})
    (tmp_path / INDEX).write_bytes(index)
    with pytest.raises(WeightsError, match=words):
        open_weights(tmp_path)


def test_what_torch_cannot_read_as_weights(tmp_path: Path) -> None:
    (tmp_path / "bad.pt").write_bytes(b"nothing of torch")
    with pytest.raises(WeightsError, match="torch cannot read it as weights"):
        open_weights(tmp_path / "bad.pt")
    torch.save({"a": "text"}, tmp_path / "text.pt")
    with pytest.raises(WeightsError, match="'a' is no tensor"):
        open_weights(tmp_path / "text.pt")
    with pytest.raises(WeightsError, match="no such file"):
        open_weights(tmp_path / "none.pt")
    with pytest.raises(WeightsError, match=r"there is no model\.safetensors"):
        open_weights(tmp_path)


def test_a_type_that_the_format_lacks(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no type for torch\.complex128 of a"):
        write_file(tmp_path / "a.safetensors", {"a": torch.zeros(1, dtype=torch.complex128)})
    assert list(tmp_path.iterdir()) == []
