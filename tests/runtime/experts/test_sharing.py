"""Experts of models of `transformers`, taken apart."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import recycle_runtime as recycle
from recycle_runtime.experts.sharing import GatedExperts
from recycle_runtime.program.errors import ProgramError

COMMON: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
    "experts_implementation": "eager",
}
OWN: dict[str, Any] = {**COMMON, "num_experts": 4, "moe_intermediate_size": 8}
HEADS: dict[str, Any] = {"head_dim": 8}


def models() -> dict[str, nn.Module]:
    return {
        "mixtral": MixtralForCausalLM(MixtralConfig(**COMMON, num_local_experts=4)),
        "qwen2": Qwen2MoeForCausalLM(Qwen2MoeConfig(**OWN, shared_expert_intermediate_size=8)),
        "qwen3": Qwen3MoeForCausalLM(Qwen3MoeConfig(**OWN, **HEADS)),
    }


@pytest.mark.parametrize("kind", ["mixtral", "qwen2", "qwen3"])
def test_equal_to_the_untouched_model(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = models()[kind].double()
    shared: Any = recycle.share_experts(copy.deepcopy(model))
    assert sum(isinstance(each, GatedExperts) for each in shared.modules()) == 2
    tokens = torch.arange(18).reshape(2, 9) % 7
    mask = torch.ones_like(tokens)
    mask[1, 6:] = 0
    made = [each(input_ids=tokens, attention_mask=mask, labels=tokens) for each in (model, shared)]
    assert float(made[0].aux_loss.detach()) > 0
    for name in ("loss", "aux_loss", "logits"):
        torch.testing.assert_close(getattr(made[1], name), getattr(made[0], name), rtol=1e-12, atol=1e-12)
    for each in made:
        each.loss.backward()
    expected = dict(model.named_parameters())
    assert list(expected) == [name for name, _ in shared.named_parameters()]
    for name, parameter in shared.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_shared() -> None:
    with pytest.raises(ProgramError, match=r"Linear has no experts to share$"):
        recycle.share_experts(nn.Linear(1, 1))
    with pytest.raises(ProgramError, match="no experts to share: they are shared already"):
        recycle.share_experts(recycle.share_experts(models()["mixtral"]))
    other = GptOssForCausalLM(GptOssConfig(**COMMON, num_local_experts=4, head_dim=8))
    with pytest.raises(ProgramError, match=r"layers.0.mlp.experts \(GptOssExperts\) cannot be shared"):
        recycle.share_experts(other)
