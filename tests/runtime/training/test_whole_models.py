"""Models of `transformers`, given whole, train in a pipeline as in a plain loop."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from recycle_compiler.ir.job import Techniques
from recycle_runtime.program.model_layers import Body, ModelLayer, WholeModel
from recycle_runtime.program.named_inputs import as_tuple
from tests.runtime.recovery.recut_plans import write_bundle
from tests.runtime.training.threads import train_in_threads
from tests.runtime.training.whole import Whole, train_whole
from tests.support.jobs import ALL, NONE
from tests.support.layers import layer_costs, layered_job

PROGRAMS = Path(__file__).resolve().parent / "programs"
STEPS = 4
PIPELINES = MICROBATCHES = 2


def two_by_two(
    folder: Path, cut: tuple[int, ...], tied: tuple[int, ...] = (), techniques: Techniques = ALL
) -> str:
    job = replace(
        layered_job(layer_costs((1000,) * sum(cut)), cut, PIPELINES, MICROBATCHES),
        tied=tied,
        techniques=techniques,
    )
    return write_bundle(folder / "whole.plan", job, {}, [(0, 0), (0, 1), (1, 0)])


def tied_gpt2(folder: Path) -> str:
    """As `transformers` has it: the head is the token embedding."""
    path = folder / "tied_gpt2.py"
    source = (PROGRAMS / "gpt2.py").read_text()
    path.write_text(source.replace("tie_word_embeddings=False", "tie_word_embeddings=True"))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cut", "tied"), [("llama", (2, 2), ()), ("gpt2", (1, 3), ()), ("tied gpt2", (2, 2), (0, 3))]
)
def test_equals_a_plain_loop(tmp_path: Path, name: str, cut: tuple[int, ...], tied: tuple[int, ...]) -> None:
    """Without failures, and with one."""
    program = tied_gpt2(tmp_path) if tied else str(PROGRAMS / f"{name}.py")
    expected = train_whole(program, PIPELINES * MICROBATCHES, STEPS)
    for plan in (0, 1):
        check(two_by_two(tmp_path, cut, tied), program, plan, expected)


def check(bundle: str, program: str, plan: int, expected: Whole) -> None:
    losses, workers = train_in_threads(bundle, program, plan, len(expected.losses))
    assert losses == pytest.approx(expected.losses, rel=1e-12)
    seen: set[str] = set()
    for worker in workers.values():
        for chunk in worker.chunks.values():
            for key, value in chunk.module.state_dict().items():
                torch.testing.assert_close(value, expected.state[key], rtol=1e-10, atol=1e-12)
                seen.add(key)
    assert seen == set(expected.state)


def experts(folder: Path, kind: str, implementation: str) -> str:
    """A mixture of experts, as `transformers` has it."""
    path = folder / f"{kind}.py"
    source = (PROGRAMS / "experts.py").read_text()
    source = source.replace('KIND: str = "mixtral"', f'KIND: str = "{kind}"')
    path.write_text(source.replace('EXPERTS: str = "eager"', f'EXPERTS: str = "{implementation}"'))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "implementation"), [("mixtral", "eager"), ("qwen2", "batched_mm"), ("qwen3", "shared")]
)
def test_mixtures_of_experts(tmp_path: Path, kind: str, implementation: str) -> None:
    """Router logits of all layers go to the loss: plain 1F1B, decoupled, and with a failure."""
    program = experts(tmp_path, kind, implementation)
    expected = train_whole(program, PIPELINES * MICROBATCHES, 6)
    check(two_by_two(tmp_path, (2, 2), techniques=NONE), program, 0, expected)
    for plan in (0, 1):
        check(two_by_two(tmp_path, (2, 2)), program, plan, expected)


def test_own_mixtures(tmp_path: Path) -> None:
    """Experts made without memory; the loss that balances them counts as much as the model's own."""
    program = str(PROGRAMS / "mixture.py")
    expected = train_whole(program, PIPELINES * MICROBATCHES, 3)
    check(two_by_two(tmp_path, (2, 2)), program, 1, expected)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [(4,), (1, 1, 1, 1)])
def test_experts_as_they_are(cut: tuple[int, ...]) -> None:
    """In float32 with what `transformers` chooses by itself, of which fake tensors know nothing."""
    config = MixtralConfig(
        vocab_size=48,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        output_router_logits=True,
        output_hidden_states=True,
    )
    model = MixtralForCausalLM(config)
    tokens = torch.arange(16).reshape(2, 8)
    inputs = {"input_ids": tokens, "labels": tokens}
    expected = model(**inputs, use_cache=False)
    layers = [layer for _, layer in WholeModel(model).build(0, 4, 0)]
    given: Any = as_tuple(inputs)
    first = 0
    for count in cut:
        here = [layer for layer in layers[first : first + count] if isinstance(layer, ModelLayer)]
        given = Body(here).run(given, True)
        first += count
    assert torch.equal(given.loss, expected.loss)
    for name in ("router_logits", "hidden_states"):
        made = getattr(given, name)
        assert all(map(torch.equal, made, getattr(expected, name)))
        assert len(made) == len(getattr(expected, name))
