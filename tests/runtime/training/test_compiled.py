"""torch.compile of a layer, of a module in a layer, of a function in a forward: equal gradients and names."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import load_program
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
    assert ("is compiled: its weights' gradients" in caplog.text) is (kind != "function")
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
