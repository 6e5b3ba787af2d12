"""Trains a small model of `transformers`, with recyclec or in a plain loop, for `bench.model_matrix`.

python families.py FAMILY FEATURE --steps 6 -o FOLDER --plain
recycle-run local PLAN families.py FAMILY FEATURE --steps 6 -o FOLDER
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

MICROBATCHES, ROWS, LENGTH, WORDS = 4, 2, 16, 64
WIDTH, LAYERS, HEADS = 16, 4, 2
_DECODER = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "pad_token_id": 0,
}
_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
}
_NO_DROPOUT = dict.fromkeys(
    ("attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0
) | {"dropout": 0.0, "attention_dropout": 0.0}
"""A run draws other numbers than a plain loop, the same ones whoever fails."""
_ENCODER = {**_DECODER, "max_position_embeddings": 2 * LENGTH, **_NO_DROPOUT}
_IMAGES = {"image_size": 16, "patch_size": 4, "num_channels": 3}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", _DECODER),
    "Mistral": ("MistralForCausalLM", _DECODER),
    "Qwen3": ("Qwen3ForCausalLM", {**_DECODER, "head_dim": WIDTH // HEADS}),
    "Gemma2": ("Gemma2ForCausalLM", {**_DECODER, "head_dim": WIDTH // HEADS}),
    "GPT-2": (
        "GPT2LMHeadModel",
        {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, **_NO_DROPOUT},
    ),
    "GPT-NeoX": ("GPTNeoXForCausalLM", {**_ENCODER}),
    "OPT": ("OPTForCausalLM", {**_ENCODER, "ffn_dim": 2 * WIDTH, "word_embed_proj_dim": WIDTH}),
    "BERT": ("BertForMaskedLM", _ENCODER),
    "ViT": ("ViTForImageClassification", {**_ENCODER, **_IMAGES, "num_labels": 8}),
    "ResNet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "num_labels": 8},
    ),
    "Mixtral": ("MixtralForCausalLM", {**_DECODER, **_EXPERTS}),
    "Qwen2-MoE": ("Qwen2MoeForCausalLM", {**_DECODER, **_EXPERTS}),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", {**_DECODER, **_EXPERTS, "head_dim": WIDTH // HEADS}),
}
FEATURES = ("whole", "compiled", "checkpointed", "tied", "auxiliary loss", "bf16")
WITH_EXPERTS = ("Mixtral", "Qwen2-MoE", "Qwen3-MoE")
WITH_IMAGES = ("ViT", "ResNet")


def has(family: str, feature: str) -> bool:
    """True if a family has what a feature is about."""
    if feature == "auxiliary loss":
        return family in WITH_EXPERTS
    if feature == "tied":
        return family not in WITH_IMAGES
    return feature != "checkpointed" or family != "ResNet"


def build(family: str, feature: str) -> nn.Module:
    name, options = CONFIGS[family]
    kind: Any = getattr(transformers, name)
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    more = {"output_router_logits": True, "router_aux_loss_coef": 0.1} if feature == "auxiliary loss" else {}
    config = kind.config_class(**options, tie_word_embeddings=feature == "tied", **more)
    # Grouped products have no float64.
    config._experts_implementation = "eager"
    model: nn.Module = kind(config)
    model = model.float() if feature == "bf16" else model.double()
    if feature == "checkpointed":
        checkpointed: Any = model
        checkpointed.gradient_checkpointing_enable()
    if feature == "compiled":
        for module in model.modules():
            for child in module.children() if isinstance(module, nn.ModuleList) else ():
                child.compile(backend="aot_eager")  # pyright: ignore[reportUnknownMemberType]
    return model.train()


def microbatch_of(family: str, feature: str) -> Callable[[int], dict[str, torch.Tensor]]:
    dtype = torch.float32 if feature == "bf16" else torch.float64

    def made(index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        if family in WITH_IMAGES:
            pixels = torch.randn(4, 3, 16, 16, generator=generator, dtype=dtype)
            return {"pixel_values": pixels, "labels": torch.randint(8, (4,), generator=generator)}
        rows = torch.randint(1, WORDS, (ROWS, LENGTH), generator=generator)
        return {"input_ids": rows, "labels": rows}

    return made


class Data:
    """Micro-batches by number."""

    def __init__(self, family: str, feature: str) -> None:
        self.microbatch = microbatch_of(family, feature)


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Of a gradient that is nothing but rounding, as a key's bias has, no step comes with this `eps`."""
    return torch.optim.AdamW(list(parameters), lr=1e-3, eps=1e-4)


def plain(family: str, feature: str, steps: int) -> tuple[list[float], dict[str, torch.Tensor], float]:
    """The loop that one would write for one process: losses, state, and a loss in evaluation mode."""
    model, made = build(family, feature), microbatch_of(family, feature)
    called: Any = model
    own, losses = optimizer(model.parameters()), list[float]()
    with torch.autocast("cpu", torch.bfloat16, enabled=feature == "bf16"):
        for step in range(steps):
            total = 0.0
            for index in range(step * MICROBATCHES, (step + 1) * MICROBATCHES):
                loss = called(**made(index)).loss / MICROBATCHES
                loss.backward()
                total += float(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            own.step()
            own.zero_grad()
            losses.append(total)
        model.eval()
        with torch.no_grad():
            held_out = sum(float(called(**made(index)).loss) for index in range(1000, 1004)) / 4
    return losses, model.state_dict(), held_out


def ours(family: str, feature: str, steps: int) -> tuple[list[float], dict[str, torch.Tensor], float]:
    import recycle_runtime as recycle

    model, precision = build(family, feature), "bf16" if feature == "bf16" else None
    trainer = recycle.Trainer(model, optimizer=optimizer, clip_norm=1.0, precision=precision)
    data, losses = Data(family, feature), list[float]()
    for _ in trainer.steps(steps):
        losses.append(trainer.step(data).loss)
    held_out = [data.microbatch(index) for index in range(1000, 1004)]
    return losses, trainer.state_dict(), trainer.evaluate(held_out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=list(CONFIGS))
    parser.add_argument("feature", choices=FEATURES)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    losses, state, held_out = (plain if given.plain else ours)(given.family, given.feature, given.steps)
    if state:
        torch.save(state, given.output / "state.pt")
        (given.output / "losses.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))


if __name__ == "__main__":
    main()
