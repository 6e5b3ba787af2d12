"""Work that is replayed gives what launched work gives; what cannot be captured is computed as ever."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.execution.chunk import Chunk, Graphs, build_chunks
from recycle_runtime.execution.session import Role, Session
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program
from recycle_runtime.transport.choose import connect
from recycle_runtime.transport.interface import Grid

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

FOLDER = Path(__file__).parents[2] / "data"
PROGRAM = """
import torch
from torch import nn
CLIP_NORM = 0.5
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(16), nn.Linear(16, 16)
    def forward(self, value):
        {extra}
        return value + torch.tanh(self.linear(self.norm(value)))
def layers():
    return [(f"blocks.{{n}}", Block().double()) for n in range(3)]
def loss(output, target):
    return ((output - target) ** 2).mean()
def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    count = 0
    while True:
        rows = {rows}
        count += 1
        yield tuple(torch.randn(rows, 16, generator=generator, dtype=torch.float64) for _ in range(2))
def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)
"""


def trained(
    folder: Path,
    plan: str,
    graphs: Graphs,
    extra: str = "pass",
    rows: str = "4",
    *,
    program: str = PROGRAM,
    steps: int = 8,
) -> tuple[list[Any], Chunk]:
    """Some steps of a plan of one worker; its losses, and the chunk."""
    path = folder / "program.py"
    path.write_text(program.format(extra=extra, rows=rows))
    device = torch.device("cuda", 0)
    bundle = Bundle.read(FOLDER / plan)
    stream = bundle.stream(0, (0, 0))
    grid = Grid(bundle.workers(0), 1, 1, bundle.chunk_stages)
    store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    transport = connect(store, grid, (0, 0), 0, stream, device, timedelta(seconds=60))
    chunks = build_chunks(load_program(path), bundle, 0, 0, device, graphs=graphs)
    session = Session(Role(bundle, 0, (0, 0), stream, grid), chunks, transport, store, device)
    losses = [session.run(step).loss for step in range(steps)]
    session.settle()
    session.close()
    return losses, chunks[0]


def same(one: tuple[list[Any], Chunk], other: tuple[list[Any], Chunk]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-12)
    states = one[1].module.state_dict(), other[1].module.state_dict()
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_replayed_steps_are_the_same_steps(tmp_path: Path, plan: str) -> None:
    replayed = trained(tmp_path, plan, "on")
    assert replayed[1].graphs
    same(replayed, trained(tmp_path, plan, "off"))


def test_other_shapes_are_computed_as_ever(tmp_path: Path) -> None:
    rows = "4 if count < 24 else 3 + count % 2"
    replayed = trained(tmp_path, "one-worker-decoupled.plan", "on", rows=rows)
    assert replayed[1].graphs
    same(replayed, trained(tmp_path, "one-worker-decoupled.plan", "off", rows=rows))


@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_random_numbers_are_those_of_step_micro_batch_and_layer(tmp_path: Path, plan: str) -> None:
    extra = "value = nn.functional.dropout(value, 0.5) + torch.rand_like(value)"
    replayed = trained(tmp_path, plan, "on", extra)
    assert replayed[1].graphs
    same(replayed, trained(tmp_path, plan, "off", extra))


@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_a_backward_that_leads_to_deferred_weights_only(tmp_path: Path, plan: str) -> None:
    """No layer but Linear: autograd itself has nothing to accumulate."""
    program = PROGRAM.replace("value + torch.tanh(self.linear(self.norm(value)))", "self.linear(value)")
    program = program.replace("self.norm, self.linear = nn.LayerNorm(16), ", "self.linear = ")
    replayed = trained(tmp_path, plan, "on", program=program)
    assert replayed[1].graphs
    same(replayed, trained(tmp_path, plan, "off", program=program))


@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_a_parameter_that_is_not_used_stays_as_it_is(tmp_path: Path, plan: str) -> None:
    """Weight decay would change one whose gradient is zero."""
    setup = PROGRAM.replace("super().__init__()", "super().__init__(); self.spare = nn.Linear(2, 2)")
    replayed = trained(tmp_path, plan, "on", program=setup)
    assert replayed[1].graphs
    same(replayed, trained(tmp_path, plan, "off", program=setup))
    fresh = trained(tmp_path, plan, "off", program=setup, steps=1)[1].module.state_dict()
    for name, value in replayed[1].module.state_dict().items():
        assert "spare" not in name or torch.equal(value, fresh[name])


@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_weights_that_are_cast_once_a_step(tmp_path: Path, plan: str) -> None:
    """Under autocast, with gradients in float32: replayed as launched, and near plain autograd."""
    program = (
        PROGRAM.replace(".double()", "").replace("torch.float64", "torch.float32") + 'PRECISION = "bf16"\n'
    )
    replayed = trained(tmp_path, plan, "on", program=program)
    launched = trained(tmp_path, plan, "auto", program=program, steps=2)
    assert replayed[1].graphs
    assert replayed[0][:2] == launched[0]
    plain = trained(tmp_path, "one-worker.plan", "off", program=program)
    assert replayed[0] == pytest.approx(plain[0], rel=1e-2)


CHECKPOINTED = PROGRAM.replace(
    "return value + torch.tanh(self.linear(self.norm(value)))",
    "return value + checkpoint(self.inside, value, use_reentrant=False)\n"
    "    def inside(self, value):\n"
    "        return torch.tanh(self.linear(self.norm(value)))",
).replace("from torch import nn", "from torch import nn\nfrom torch.utils.checkpoint import checkpoint")


@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_what_is_computed_again_in_the_backward(tmp_path: Path, plan: str) -> None:
    replayed = trained(tmp_path, plan, "auto", program=CHECKPOINTED)
    same(replayed, trained(tmp_path, plan, "off", program=CHECKPOINTED))
    assert replayed[1].graphs, replayed[1].cannot_capture


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_layers_that_are_compiled(tmp_path: Path, plan: str) -> None:
    program = PROGRAM.replace(
        'return [(f"blocks.{{n}}", Block().double()) for n in range(3)]',
        "found = [(f'blocks.{{n}}', Block().double()) for n in range(3)]\n"
        "    for name, layer in found:\n"
        "        layer.compile()\n"
        "    return found",
    )
    try:
        launched = trained(tmp_path, plan, "off", program=program)
    except Exception as error:
        if "compiler" in str(error).lower() or "triton" in str(error).lower():
            pytest.skip(f"nothing can be compiled here: {error}")
        raise
    replayed = trained(tmp_path, plan, "auto", program=program)
    assert replayed[0] == pytest.approx(launched[0], rel=1e-10)
    assert replayed[1].graphs, replayed[1].cannot_capture


WHOLE = """
import torch
from types import SimpleNamespace
from torch import nn
CLIP_NORM = 0.5
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16)) for _ in range(3))
        self.head = nn.Linear(16, 32)
        self.register_buffer("places", torch.arange(8) / 8, persistent=False)
    def forward(self, input_ids, labels):
        value = self.embed(input_ids) + self.places[:, None]
        steps = torch.diff(torch.arange(input_ids.shape[1], device=input_ids.device))
        if torch.cuda.is_current_stream_capturing() or not (steps == 1).all():
            value = value * 2
        for layer in self.layers:
            value = value + torch.tanh(layer(value))
        loss = nn.functional.cross_entropy(self.head(value).flatten(0, 1), labels.flatten())
        return SimpleNamespace(loss=loss)
def model():
    return Model().double()
def microbatch(index):
    generator = torch.Generator().manual_seed(index)
    ids = torch.randint(32, ({rows}, 8), generator=generator)
    return {extra}
def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)
"""
NAMED = '{"input_ids": ids, "labels": ids}'


@pytest.mark.parametrize("plan", ["one-worker.plan", "one-worker-decoupled.plan"])
def test_a_whole_model_that_computes_its_own_loss(tmp_path: Path, plan: str) -> None:
    replayed = trained(tmp_path, plan, "on", NAMED, program=WHOLE)
    assert replayed[1].graphs
    same(replayed, trained(tmp_path, plan, "off", NAMED, program=WHOLE))


def test_targets_that_are_several_tensors(tmp_path: Path) -> None:
    program = (
        PROGRAM.replace("(output - target) ** 2", "(output - target[0].cuda()) ** 2")
        .replace("yield tuple(", "yield (lambda pair: (pair[0], pair[1:]))(tuple(")
        .replace("for _ in range(2))", "for _ in range(2)))")
    )
    eager = trained(tmp_path, "one-worker.plan", "auto", program=program)
    assert "targets" in eager[1].cannot_capture
    with pytest.raises(ProgramError, match="cannot be captured as CUDA graphs"):
        trained(tmp_path, "one-worker.plan", "on", program=program)


LEFT_ASIDE = """side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            value.clone()
        value = nn.functional.dropout(value, 0.5)"""
"""Work of a forward that nobody waits for: the capture cannot end; numbers are drawn as ever after that."""


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (LEFT_ASIDE, "unjoined"),
        ("value = value * (1 if torch.rand(()) < 2 else 0)", "on the host"),
        ("value.sum().item()", "wait for the device"),
    ],
)
def test_what_cannot_be_captured(tmp_path: Path, extra: str, words: str) -> None:
    eager = trained(tmp_path, "one-worker-decoupled.plan", "auto", extra)
    assert words in eager[1].cannot_capture
    same(eager, trained(tmp_path, "one-worker-decoupled.plan", "off", extra))
    with pytest.raises(ProgramError, match="cannot be captured as CUDA graphs"):
        trained(tmp_path, "one-worker-decoupled.plan", "on", extra)
