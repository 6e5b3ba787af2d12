"""Modules with matrices of their own: their products wait, and gradients are those of plain autograd."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recycle_runtime.execution.split_backward import prepare
from recycle_runtime.execution.split_backward import products as module_of_products
from recycle_runtime.execution.split_backward.general import GeneralUnit
from recycle_runtime.execution.split_backward.products import _Matrix
from tests.runtime.execution.split_backward.compare import Twins

IN, OUT, EXPERTS = 6, 4, 3


@pytest.fixture(autouse=True)
def _modules_of_tests_are_known(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(module_of_products, "KNOWN", ("tests.",))


class Matrices(nn.Module):
    """A matrix of each kind, and a vector."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.use = use
        self.turned = nn.Parameter(torch.randn(IN, OUT))
        self.weight = nn.Parameter(torch.randn(OUT, IN))
        self.bias = nn.Parameter(torch.randn(OUT))
        self.experts = nn.Parameter(torch.randn(EXPERTS, OUT, IN))

    def forward(self, value: Tensor) -> Tensor:
        return self.use(self, value)


def by_expert(module: Any, value: Tensor) -> Tensor:
    """As `transformers` goes through them; the last one has no rows."""
    made = torch.zeros(*value.shape[:-1], OUT, dtype=value.dtype)
    for expert in torch.arange(EXPERTS - 1):
        rows = torch.arange(len(value)) % (EXPERTS - 1) == expert
        made[rows] = F.linear(value[rows], module.experts[expert])
    return made


def packed(module: Any, value: Tensor) -> Tensor:
    one, other = module.weight.chunk(2)
    return torch.cat([F.linear(value, one, module.bias[:2]), F.linear(value, other, module.bias[2:])], -1)


def checkpointed(module: Any, value: Tensor) -> Tensor:
    def again(each: Tensor) -> Tensor:
        return each @ module.turned

    return cast(Tensor, checkpoint(again, value, use_reentrant=False)) + value @ module.turned


class Halved(torch.autograd.Function):
    """The same numbers, and half of the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] / 2


def hooked_view(module: Any, value: Tensor) -> Tensor:
    turned = module.weight.t()
    turned.register_hook(lambda gradient: gradient / 2)  # pyright: ignore
    return value @ turned


def hooked_below(module: Any, value: Tensor) -> Tensor:
    expert = module.experts[0]
    expert.register_hook(lambda gradient: gradient / 2)  # pyright: ignore
    return value @ expert.t()


def by_what_it_is(module: Any, value: Tensor) -> Tensor:
    """Asks what a forward may ask of its parameter."""
    module.weight.scale = 3.0
    assert module.weight.scale == 3.0
    assert isinstance(module.weight, nn.Parameter) and not isinstance(module.experts[0], nn.Parameter)
    assert not hasattr(module.weight, "another")
    return value @ module.weight.t()


def marked(module: Any, value: Tensor) -> Tensor:
    """Its parameter was marked before the forward."""
    return value @ module.turned * module.turned.mark


USES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "addmm": lambda module, value: torch.addmm(module.bias, value, module.turned),
    "addmm, computed bias": lambda module, value: torch.addmm(module.bias * 2, value, module.turned),
    "addmm, scaled": lambda module, value: torch.addmm(module.bias, value, module.turned, alpha=2),
    "matmul of three axes": lambda module, value: (value.unsqueeze(0) @ module.turned).squeeze(0),
    "of a turned one": lambda module, value: torch.matmul(value, module.weight.t()),
    "linear": lambda module, value: F.linear(value, module.weight, module.bias),
    "named": lambda module, value: F.linear(value, bias=module.bias, weight=module.weight),
    "experts": by_expert,
    "packed": packed,
    "twice": lambda module, value: (value @ module.turned) * (value.sin() @ module.turned),
    "also otherwise": lambda module, value: value @ module.turned + module.turned.sum(),
    "of other numbers": lambda module, value: value @ module.turned.exp(),
    "a broadcast one": lambda module, value: value @ module.turned[:, :1].expand(IN, OUT),
    "another gradient": lambda module, value: value @ Halved.apply(module.turned),  # pyright: ignore
    "another gradient of a part": lambda module, value: value @ Halved.apply(module.weight).t(),  # pyright: ignore
    "a hook on a part": hooked_view,
    "a hook below a part": hooked_below,
    "a bias of one": lambda module, value: F.linear(value, module.weight, module.bias[:1]),
    "first operand": lambda module, value: (module.weight @ value.t()).t(),
    "checkpointed": checkpointed,
    "asked what it is": by_what_it_is,
    "without gradient": lambda module, value: value @ module.turned + (value @ module.weight.detach().t()),
}


def batch(seed: int, grad: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(5, IN, dtype=torch.float64, generator=generator).requires_grad_(grad)]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("grad", [True, False], ids=["inside", "first layer"])
def test_products(use: str, grad: bool) -> None:
    twins = Twins(Matrices(USES[use]).double())
    for _ in range(3):
        twins.check(batch(1, grad), batch(2, grad))


def test_marks_on_parameters() -> None:
    twins = Twins(Matrices(marked).double())
    for module in (twins.plain, twins.other):
        cast(Any, module).turned.mark = 3.0
    for _ in range(3):
        twins.check(batch(1), batch(2))


@pytest.mark.parametrize("frozen", ["turned", "bias"])
def test_frozen_parts(frozen: str) -> None:
    module = Matrices(USES["addmm"]).double()
    getattr(module, frozen).requires_grad_(False)
    twins = Twins(module)
    for _ in range(3):
        twins.check(batch(1), batch(2))


def test_hooks_see_one_sum() -> None:
    seen: list[float] = []
    stage = Matrices(packed).double()

    def see(grad: Tensor) -> None:
        seen.append(float(grad.sum()))

    stage.weight.register_hook(see)
    split = prepare(stage)
    for _ in range(2):
        seen.clear()
        stage.zero_grad()
        split.backward_input([stage(*batch(1)).sum()], [None]).run()
        assert seen == pytest.approx([float(stage.weight.grad.sum())])  # pyright: ignore


def grouped(module: Any, value: Tensor) -> Tensor:
    ends = torch.tensor([8, 16, 32], dtype=torch.int32)
    made = F.grouped_mm(value, module.experts.transpose(-2, -1), offs=ends)
    return F.grouped_mm(made, module.experts, offs=ends)


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has none")
def test_products_in_groups() -> None:
    module = Matrices(grouped)
    module.experts = nn.Parameter(torch.randn(EXPERTS, 16, 32))
    twins = Twins(module.bfloat16(), tolerance=2e-2)
    rows = [torch.randn(32, 32, dtype=torch.bfloat16).requires_grad_() for _ in range(2)]
    for _ in range(2):
        twins.check(*([each] for each in rows))


def test_autocast_casts_a_matrix_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def use(module: Any, value: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.addmm(module.bias, value, module.turned)

    twins = Twins(Matrices(use), tolerance=2e-2)
    for _ in range(3):
        twins.check([batch(1)[0].detach().float().requires_grad_()])
    (unit,) = twins.split._units
    assert isinstance(unit, GeneralUnit)
    assert unit.bytes_held == 2 * (IN * OUT + OUT)
    with torch.no_grad():
        twins.other.turned.mul_(2)  # pyright: ignore
        twins.plain.turned.mul_(2)  # pyright: ignore
    twins.split.refresh()
    twins.check([batch(3)[0].detach().float().requires_grad_()])


@pytest.mark.parametrize(
    ("use", "waits"), [("addmm", True), ("experts", True), ("packed", True), ("of other numbers", False)]
)
def test_which_wait_as_products(use: str, waits: bool) -> None:
    """The others are deferred whole."""
    stage = Matrices(USES[use]).double()
    split = prepare(stage)
    for _ in range(2):
        split.backward_input([stage(*batch(1)).sum()], [None]).run()
    work = split.backward_input([stage(*batch(1)).sum()], [None])
    assert bool(work._layers) is waits and bool(work._calls) is not waits
    work.run()


def test_matrices_of_others_do_not_wait() -> None:
    """Another kind of wait may be for them in the model that they belong to."""
    foreign = nn.Parameter(torch.randn(IN, OUT, dtype=torch.float64))
    stage = Matrices(lambda module, value: value @ module.turned + value @ foreign).double()
    split = prepare(stage)
    work = split.backward_input([stage(*batch(1)).sum()], [None])
    assert foreign.grad is not None and stage.turned.grad is None
    work.run()
    assert stage.turned.grad is not None


def test_nothing_is_looked_at_outside() -> None:
    stage = Matrices(USES["addmm"]).double()
    split = prepare(stage)
    split.backward_input([stage(*batch(1)).sum()], [None]).run()
    kinds: list[type[Any]] = []

    def use(module: Any, value: Tensor) -> Tensor:
        kinds.append(type(module.turned))
        made = value @ module.turned
        kinds.append(type(made))
        return made

    stage.use = use

    stage(*batch(1))
    assert kinds == [_Matrix, Tensor] and type(stage.turned) is nn.Parameter

    def fail(module: Any, value: Tensor) -> Tensor:
        raise ValueError(type(module.turned).__name__)

    stage.use = fail
    with pytest.raises(ValueError, match="_Matrix"):
        stage(*batch(1))
    assert type(stage.turned) is nn.Parameter


def test_modules_of_users_are_deferred_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their forwards may ask for gradients themselves."""
    monkeypatch.undo()
    stage = Matrices(USES["addmm"]).double()
    split = prepare(stage)
    split.backward_input([stage(*batch(1)).sum()], [None]).run()
    work = split.backward_input([stage(*batch(1)).sum()], [None])
    assert work._calls and not work._layers
    work.run()
