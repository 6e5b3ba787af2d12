"""examples/tokens.py: a file of tokens as the data of a GPT."""

from array import array
from pathlib import Path

import pytest
import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.program.loading import load_program

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tokens.py"


def test_pieces_of_the_file_come_once_in_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [number % 29 for number in range(64 * 12 + 5)]
    with (tmp_path / "tokens.bin").open("wb") as file:
        array("h", tokens).tofile(file)
    monkeypatch.setenv("TOKENS", str(tmp_path / "tokens.bin"))
    data = MicroBatches(load_program(EXAMPLE), 3, 3)
    assert data.signature(0, 0) == "int64[4,64]"
    seen: list[int] = []
    for index in range(3):
        inputs, target = data.item(0, index)
        assert torch.equal(inputs[:, 1:], target[:, :-1])
        seen += [row.tolist() for row in inputs]
    pieces = [tokens[64 * place : 64 * place + 64] for place in range(12)]
    assert sorted(map(str, seen)) == sorted(map(str, pieces))
    assert [data.item(1, index)[0].tolist() for index in range(3)] != seen
