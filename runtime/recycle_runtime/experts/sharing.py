"""Experts of models of `transformers`, taken apart: the same parameters under the same names, shared by
peers.

    model = recycle.share_experts(MixtralForCausalLM(config), capacity=1.25)

Routers stay what they are, and with them the logits of which these models make the loss that balances
experts.
"""

from typing import Any, TypeVar, cast

from torch import Tensor, nn

from recycle_runtime.experts.grouped import ExpertRows, grouped_linear
from recycle_runtime.experts.shared import SharedExperts
from recycle_runtime.program.errors import ProgramError

_HINT = "those of Mixtral, Qwen2-MoE and Qwen3-MoE can be; recycle.MixtureOfExperts is for your own layers"
_Model = TypeVar("_Model", bound=nn.Module)


class GatedExperts(SharedExperts):
    """Experts of gate, up and down, in place of those of Mixtral, Qwen2-MoE or Qwen3-MoE."""

    def __init__(self, given: Any, capacity: float | None = None) -> None:
        """`given`: their experts; parameters stay the same objects."""
        experts, width, _ = given.down_proj.shape
        super().__init__(experts, width, capacity)
        self.gate_up_proj: nn.Parameter = given.gate_up_proj
        self.down_proj: nn.Parameter = given.down_proj
        self.act_fn: nn.Module = given.act_fn

    def compute(self, rows: Tensor, groups: ExpertRows) -> Tensor:
        gate, up = grouped_linear(rows, self.gate_up_proj, None, groups).chunk(2, dim=-1)
        return grouped_linear(self.act_fn(gate) * up, self.down_proj, None, groups)


def share_experts(model: _Model, *, capacity: float | None = None) -> _Model:
    """The same model, whose experts peers can share. `capacity`: room for tokens, by what experts would get
    if all were asked for equally often; None: no token is dropped, as `transformers` has it."""
    found = [(name, each) for name, each in model.named_modules() if _are_experts(each)]
    if not found:
        has_some = any(isinstance(each, SharedExperts) for each in model.modules())
        raise ProgramError(
            f"{type(model).__name__} has no experts to share"
            + (": they are shared already" if has_some else ""),
            _HINT,
        )
    for name, experts in found:
        if why := _other_form(experts):
            raise ProgramError(
                f"{name} ({type(experts).__name__}) cannot be shared: its experts have {why}",
                _HINT,
            )
        path, _, own = name.rpartition(".")
        shared = GatedExperts(experts, capacity).train(experts.training)
        setattr(model.get_submodule(path), own, shared)
    return model


def _are_experts(module: nn.Module) -> bool:
    """True for stacked experts, as they are in models of `transformers` from its version 5 on."""
    stacked = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    is_stacked = all(isinstance(each, nn.Parameter) and each.dim() == 3 for each in stacked)
    return is_stacked and not isinstance(module, SharedExperts)


def _other_form(experts: Any) -> str:
    """Parts of these experts that those of Mixtral do not have."""
    forms = {
        "is_transposed": "transposed weights",
        "has_bias": "biases",
        "has_post_expert_norm": "norms of their own",
    }
    for name, words in forms.items():
        if getattr(experts, name, False):
            return words
    if not getattr(experts, "is_concatenated", True):
        return "gates between their other rows"
    names = {name for name, _ in cast(nn.Module, experts).named_parameters()}
    if names != {"gate_up_proj", "down_proj"}:
        return f"other parameters ({', '.join(sorted(names))})"
    gate = getattr(type(experts), "_apply_gate", None)
    if not hasattr(experts, "act_fn") or getattr(gate, "__name__", "") not in ("_default_apply_gate", ""):
        return "a gate of their own"
    return ""
