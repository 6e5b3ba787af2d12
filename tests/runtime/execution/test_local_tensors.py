"""DTensors of a program: what steps, states and messages have of them, on a mesh of one rank.

Runs with two are in `training/test_tensor_parallel.py` and `recovery/test_distributed_runs.py`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import recycle_runtime as recycle
from recycle_runtime.execution.digest import tensor_digest
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.local_tensors import (
    is_slice,
    local_state,
    plain_outputs,
    settled,
    slices_of,
    whole_number,
)
from recycle_runtime.execution.optimizer import FlatGradients
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import Program
from recycle_runtime.transport import rank_mesh
from recycle_runtime.weights.fill import fill_layers


@pytest.fixture(autouse=True)
def mesh() -> Iterator[Any]:
    ranks: Any = rank_mesh._Ranks  # pyright: ignore[reportPrivateUsage]
    ranks.group = None
    yield recycle.mesh()
    # Also the one that a test before may have left: torch forgets all groups.
    ranks.group = None
    dist.destroy_process_group()


def plain() -> nn.Sequential:
    torch.manual_seed(1)
    made = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.LayerNorm(2))
    return made.double()


def parallel(mesh: Any) -> nn.Module:
    return parallelize_module(plain(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def _sum_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.sum()


def _ones(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(1), torch.ones(1)


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def program_names() -> dict[str, Any]:
    return {
        "layers": lambda: [("only", plain())],
        "loss": _sum_of,
        "microbatch": _ones,
        "optimizer": _adamw,
    }


def program(**names: Any) -> Program:
    return Program(Path("model.py"), program_names() | names)


def layer(module: nn.Module, **names: Any) -> Layer:
    return Layer(program(**names), 0, "only", module, has_ranks=True)


def test_code_that_knows_nothing_of_this_runtime_finds_the_ranks() -> None:
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    assert init_device_mesh("cpu", (1,)).get_group() is recycle.mesh().get_group()
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [1, 1]


def test_steps_are_those_of_plain_parameters(mesh: Any) -> None:
    """Gradients of several micro-batches, one step that is thrown away, averages; the state of a peer."""
    torch.manual_seed(2)
    data = torch.randn(4, 5, 3).double()
    held = [layer(parallel(mesh)), layer(plain())]
    assert [held[0].has_distributed, held[1].has_distributed] == [True, False]
    for each in held:
        gradients = FlatGradients(each.parameters)
        for batch in data:
            each.module(batch).square().sum().backward()
            gradients.gather()
            if batch is data[0]:
                gradients.zero()
        gradients.look()
        assert not gradients.absent
        assert each.stepped is not None
        with gradients.shown():
            each.stepped.optimizer.step()
        gradients.zero()
        gradients.gather()
        gradients.look()
        assert len(gradients.absent) == 6
    distributed, other = (local_state(each.module) for each in held)
    for name, tensor in other.items():
        assert type(distributed[name]) is torch.Tensor
        torch.testing.assert_close(distributed[name], tensor, rtol=1e-12, atol=1e-12)
    joiner = layer(parallel(mesh))
    joiner.load(held[0].state())
    assert tensor_digest([joiner]) == tensor_digest([held[0]])


def test_a_state_says_what_its_slices_are_of(mesh: Any) -> None:
    held = layer(parallel(mesh))
    assert held.state()["slices"] == slices_of(held.module)
    assert slices_of(held.module) == {
        "0.weight": {"dim": 0, "shape": [4, 3]},
        "0.bias": {"dim": 0, "shape": [4]},
        "2.weight": {"dim": 1, "shape": [2, 4]},
    }
    assert [is_slice(each) for each in held.parameters] == [True, True, True, False, False, False]
    by_hand = plain()
    by_hand[0].weight.tensor_parallel = True  # pyright: ignore
    assert "slices" not in layer(by_hand).state()


def test_a_state_of_other_slices_does_not_fit(mesh: Any) -> None:
    held = layer(parallel(mesh))
    state = held.state()
    state["model"] = {**state["model"], "0.weight": torch.zeros(2, 3)}
    with pytest.raises(ValueError, match=r"0.weight has shape \(2, 3\), and this rank has \(4, 3\)"):
        held.load(state)


def test_averages_move_with_steps(mesh: Any) -> None:
    def averages(module: nn.Module, optimizer: Any) -> Any:
        return torch.optim.swa_utils.AveragedModel(module)

    held, other = (layer(parallel(mesh), moves_with_steps=averages) for _ in range(2))
    assert held.stepped is not None
    with torch.no_grad():
        held.parameters[0].fill_(3.0)
    held.stepped.moving.step()
    other.load(held.state())
    assert tensor_digest([other]) == tensor_digest([held])


def test_weights_are_filled_in(mesh: Any) -> None:
    module = parallel(mesh)
    weights = {f"only.{name}": torch.full_like(value, 2.0) for name, value in plain().state_dict().items()}
    fill_layers(module, "only", weights)
    assert all(bool((value == 2.0).all()) for value in local_state(module).values())


def test_what_leaves_a_chunk_is_plain(mesh: Any) -> None:
    whole = distribute_tensor(torch.ones(2, requires_grad=True), mesh, [Replicate()])
    with pytest.raises(ProgramError, match="a layer gives a DTensor to the next one"):
        plain_outputs("model.py", (torch.ones(1), whole))
    local = whole.to_local()
    assert plain_outputs("model.py", (1, local)) == (1, local)
    assert settled(local) is local
    assert type(whole_number(whole.sum())) is torch.Tensor


def test_an_optimizer_of_whole_parameters_is_refused(mesh: Any) -> None:
    def adafactor(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(parameters)

    layer(plain(), optimizer=adafactor)
    with pytest.raises(ProgramError, match="the optimizer works on whole parameters, and only has slices"):
        layer(parallel(mesh), optimizer=adafactor)


def test_other_placements_are_refused(mesh: Any) -> None:
    module = plain()
    module[0].weight = nn.Parameter(
        DTensor.from_local(torch.ones(4, 3).double(), init_device_mesh("cpu", (1, 1)), [Shard(0), Shard(1)])
    )
    with pytest.raises(ProgramError, match=r"0\.weight is a DTensor with placements"):
        layer(module)


def wrapped_by_ddp() -> nn.Module:
    return DistributedDataParallel(plain())


def sharded() -> nn.Module:
    module = plain()
    fully_shard(module[0])
    return module


@pytest.mark.parametrize(
    ("make", "said"), [(wrapped_by_ddp, "DistributedDataParallel"), (sharded, "fully_shard")]
)
def test_what_does_between_processes_what_the_runtime_does_is_refused(make: Any, said: str) -> None:
    ways: list[dict[str, Any]] = [
        {"layers": lambda: [("only", make())]},
        {"model": lambda: nn.ModuleDict({"blocks": nn.ModuleList([make()])})},
    ]
    for names in ways:
        given = program(**names)
        if "model" in names:
            given.gives = "model"
            given._functions["model"] = names["model"]  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(ProgramError, match=f"the model uses {said}: ") as raised:
            build_layers(given, 0)
        assert "optimizer { state = sharded }" in str(raised.value.hint)


def test_a_whole_model_is_distributed_when_it_is_cut(mesh: Any) -> None:
    def model() -> nn.Module:
        made = nn.ModuleDict({"blocks": nn.ModuleList([plain()])})
        return parallelize_module(made, mesh, {"blocks.0.0": ColwiseParallel()})

    given = program()
    given.gives = "model"
    given._functions["model"] = model  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ProgramError, match=r"blocks.0.0.weight of the whole model is a DTensor"):
        build_layers(given, 0)


@pytest.mark.parametrize("gives", ["layers", "model"])
def test_a_plan_names_modules_that_there_are(mesh: Any, gives: str) -> None:
    """A key that one layer lacks another has; one that none has is a mistake."""
    prefix = "blocks.*." if gives == "model" else ""

    def made(*keys: str) -> Program:
        def parallelize(module: nn.Module, mesh: Any) -> None:
            parallelize_module(module, mesh, {f"{prefix}{key}": ColwiseParallel() for key in keys})

        def model() -> nn.Module:
            return nn.ModuleDict({"blocks": nn.ModuleList([plain(), nn.Tanh()])})

        def layers() -> list[tuple[str, nn.Module]]:
            return [("one", plain()), ("two", nn.Tanh())]

        names: dict[str, Any] = {gives: model if gives == "model" else layers}
        without = {name: each for name, each in program_names().items() if name != "layers"}
        return Program(Path("model.py"), without | names | {"parallelize": parallelize})

    given = made("0", "2")
    for _, module in build_layers(given, 0):
        given.parallelize(module, lambda: mesh)
    given = made("0", "out")
    (_, first), *_ = build_layers(given, 0)
    with pytest.raises(ProgramError, match=re.escape(f"names {prefix}out, and no layer has a module of")):
        given.parallelize(first, lambda: mesh)


def test_a_mesh_of_the_programs_own_sends_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are built while no group is joined, also by programs that never ask for `recycle.mesh()`."""
    for function in (distribute_tensor, parallelize_module):
        monkeypatch.setitem(cast(Any, function).__kwdefaults__, "src_data_rank", 0)
    rank_mesh.belong_to_worker(1, 2, torch.device("cpu"))
    module = parallelize_module(plain(), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    weight: Any = module.get_parameter("0.weight")
    assert torch.equal(weight.to_local(), plain().get_parameter("0.weight")[2:])
