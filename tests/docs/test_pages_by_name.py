"""Programs of the pages that people search for by name train as a plain loop does."""

import re
from pathlib import Path

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from recycle_compiler.frontend import parse_job_text
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import load_program
from tests.runtime.training.test_whole_models import check, two_by_two
from tests.runtime.training.threads import train_in_threads
from tests.runtime.training.whole import train_whole

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("batch-norm", "ema", "fsdp", "gradient-checkpointing", "mixture-of-experts")
_BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> dict[str, str]:
    return dict(_BLOCK.findall((DOCS / f"{page}.md").read_text("utf-8")))


@pytest.mark.parametrize("page", PAGES)
def test_the_program_of_a_page(tmp_path: Path, page: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(blocks_of(page)["program.py"], "utf-8")
    layers = len(build_layers(load_program(str(path)), 0))
    check(two_by_two(tmp_path, (1, layers - 1)), str(path), 0, train_whole(str(path), 4, 3))


def test_averages_of_the_page(tmp_path: Path) -> None:
    """One for each layer, updated after every step."""
    path = tmp_path / "program.py"
    path.write_text(blocks_of("ema")["program.py"], "utf-8")
    expected = train_whole(str(path), 4, 1).state
    start = {
        key: value
        for _, layer in build_layers(load_program(str(path)), 0)
        for key, value in layer.state_dict().items()
    }
    _, workers = train_in_threads(two_by_two(tmp_path, (1, 2)), str(path), 0, 1)
    for worker in workers.values():
        for layer in (layer for chunk in worker.chunks.values() for layer in chunk.layers):
            if layer.stepped is None:
                continue
            (average,) = layer.stepped.moving.parts.values()
            assert isinstance(average, AveragedModel)
            for name, value in average.module.state_dict().items():
                # The first update copies.
                torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=0)
                assert not torch.equal(value, start[name])


def test_the_job_of_a_page() -> None:
    job = parse_job_text(blocks_of("fsdp")["job"], "fsdp.job")
    assert job.sharding is not None and job.sharding.owners == 2
