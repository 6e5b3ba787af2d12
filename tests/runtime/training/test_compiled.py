"""torch.compile of a layer, of a module in a layer, of a function in a forward: equal gradients and names."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from recycle_runtime.execution.split_backward import prepare
from recycle_runtime.execution.ways import way_of, ways_text
from recycle_runtime.program.cutting import Stage
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import Program, load_program
from recycle_runtime.program.named_inputs import as_tuple
from recycle_runtime.trainer.names import model_names
from tests.runtime.training.compare import changed
from tests.runtime.training.plain_loop import train_plainly
from tests.runtime.training.test_convert import built, bundle_of, run
from tests.runtime.training.test_moving import SCRIPTED, check, every_chunk

COMPILED = {
    "layer": """
_layers = layers
def layers():
    made = _layers()
    return [(name, torch.compile(layer, backend="aot_eager") if name == "blocks.1" else layer)
            for name, layer in made]
""",
    "module": """
_layers = layers
def layers():
    made = _layers()
    made[1][1].linear = torch.compile(made[1][1].linear, backend="aot_eager")
    made[2][1].linear.compile(backend="aot_eager")
    return made
""",
    "function": """
@torch.compile(backend="aot_eager")
def _forward(self, value):
    return value + torch.tanh(self.linear(self.norm(value)))
Block.forward = _forward
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPILED)
def test_equals_what_is_not_compiled(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of the same process have run commands, which set up logs of their own.
    monkeypatch.setattr(logging.getLogger("recycle_runtime"), "propagate", True)
    plain = train_plainly(SCRIPTED, 4, 3)
    program = changed(tmp_path, SCRIPTED, COMPILED[kind])
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    with caplog.at_level("INFO", logger="recycle_runtime"):
        held = built(bundle, program)
    assert (" compiled; weights of what is compiled" in caplog.text) is (kind != "function")
    check(held, run(bundle, held, 0, 3), plain)
    assert not any("_orig_mod" in name for chunk in every_chunk(held) for name in chunk.module.state_dict())


CALLS: list[torch.fx.GraphModule] = []


def counted(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
    CALLS.append(graph)
    return graph.forward


def test_a_compiled_layer_still_runs_compiled(tmp_path: Path) -> None:
    change = COMPILED["layer"].replace('"aot_eager"', "counted")
    program = load_program(changed(tmp_path, SCRIPTED, f"from {__name__} import counted\n{change}"))
    layers = dict(build_layers(program, 0))
    CALLS.clear()
    layers["blocks.0"](torch.randn(2, 6, dtype=torch.float64))
    assert CALLS == []
    layers["blocks.1"](torch.randn(2, 6, dtype=torch.float64))
    assert len(CALLS) == 1


RUNS: list[int] = []


def _counting(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        RUNS.append(1)
        return graph.forward(*inputs)

    return run


def _by_method(model: Any) -> None:
    for layer in model.model.layers:
        layer.compile(backend=_counting)


def _wrapped(model: Any) -> None:
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = torch.compile(layer, backend=_counting)


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_cache=False,
    )
    return LlamaForCausalLM(config).double().train()


def _program(model: Any, **options: Any) -> Program:
    names = {
        **model_names(model)[0],
        "optimizer": torch.optim.SGD,
        "microbatch": lambda index: None,  # pyright: ignore
        **options,
    }
    return Program(Path("train.py"), names)


TOKENS = torch.arange(12).reshape(2, 6)
INPUTS = {"input_ids": TOKENS, "labels": TOKENS}


@pytest.mark.slow
@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("compile_layers", [_by_method, _wrapped, None])
def test_layers_of_a_whole_model_run_compiled(
    compile_layers: Callable[[Any], None] | None, is_checkpointed: bool
) -> None:
    """As often as in a plain loop, with the same gradients, coupled and decoupled."""
    plain, given = _llama(), _llama()
    for model in (plain, given):
        if is_checkpointed:
            model.gradient_checkpointing_enable()
    _by_method(plain)
    if compile_layers is not None:
        compile_layers(given)
    torch.compiler.reset()
    RUNS.clear()
    plain(**INPUTS).loss.backward()
    expected = len(RUNS)
    program = _program(given, **({} if compile_layers else {"COMPILE": {"backend": _counting}}))
    layers = build_layers(program, 0)
    ways = ways_text(way_of(layer) for _, layer in layers)
    assert f"compiled{' and checkpointed' * is_checkpointed}" in ways
    for split_weights in (False, True):
        RUNS.clear()
        _backward(layers, split_weights)
        # The norm at the end is one more of its own where all layers are compiled.
        assert len(RUNS) == expected + (compile_layers is None)
        found = {name: each for _, layer in layers for name, each in layer.named_parameters()}
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(found[name].grad, parameter.grad)
            found[name].grad = None


def _backward(layers: Any, split_weights: bool) -> None:
    """Of two chunks, one after the other."""
    first, second = Stage(layers[:2], spread=True), Stage(layers[2:], spread=True, first=2)
    splits = [prepare(stage) for stage in (first, second)]
    for split in splits:
        split.defer_weights(split_weights)
    leaving = first(*as_tuple(INPUTS))
    arriving = [each.detach().requires_grad_(each.is_floating_point()) for each in leaving]
    loss = second(*arriving).loss
    floats = [place for place, each in enumerate(leaving) if each.requires_grad]
    splits[1].backward_input([loss], [torch.ones_like(loss)]).run()
    gradients = [arriving[place].grad for place in floats]
    splits[0].backward_input([leaving[place] for place in floats], gradients).run()
    for split in splits:
        split.remove()


@pytest.mark.slow
def test_averages_of_whole_models() -> None:
    """The recipe: an average of a layer that has run is a copy of it."""
    model = _llama()
    _by_method(model)
    layers = build_layers(_program(model), 0)
    Stage(layers, spread=True)(*as_tuple(INPUTS)).loss.backward()
    for _, layer in layers:
        average = AveragedModel(layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(1)
        average.update_parameters(layer)
        average.update_parameters(layer)
        for one, other in zip(average.module.parameters(), layer.parameters(), strict=True):
            assert isinstance(one, nn.Parameter)
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_layers_are_not_compiled_twice_or_alone() -> None:
    layers = [("one", nn.Linear(2, 2)), ("two", nn.Sequential(nn.Linear(2, 2)))]
    program = _program(layers, COMPILE=True, loss=nn.functional.mse_loss)
    assert [way_of(layer) for _, layer in build_layers(program, 0)] == ["eager", "compiled"]
