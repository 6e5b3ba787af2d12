"""Trains a small model of `transformers`, with recyclec or in a plain loop, for `bench.model_matrix`.

recycle-run local PLAN families.py FAMILY FEATURE --steps 6 -o FOLDER
python families.py FAMILY FEATURE --steps 6 -o FOLDER --plain

A run goes on until all workers are there again, and the plain loop makes as many steps.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

WORKERS = 4
MOST_STEPS = 2_000
"""Of a run whose workers do not come back."""
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
FEATURES = (
    *("whole", "compiled", "checkpointed", "tied", "auxiliary loss", "average", "tensor parallel"),
    *("bf16", "fp16"),
)
LOW_PRECISION = ("bf16", "fp16")
WITH_EXPERTS = ("Mixtral", "Qwen2-MoE", "Qwen3-MoE")
WITH_IMAGES = ("ViT", "ResNet")
NAMED_AS_LLAMA = ("Llama", "Mistral", "Qwen3", "Gemma2")
TENSOR_PLAN: dict[str, ParallelStyle] = {
    **{
        f"model.layers.*.{name}_proj": ColwiseParallel()
        for name in ("self_attn.q", "self_attn.k", "self_attn.v")
    },
    **{f"model.layers.*.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")},
    **{f"model.layers.*.{name}_proj": RowwiseParallel() for name in ("self_attn.o", "mlp.down")},
    "lm_head": ColwiseParallel(output_layouts=Replicate()),
}
NORMS_OF_HEADS: dict[str, ParallelStyle] = {
    f"model.layers.*.self_attn.{name}_norm": SequenceParallel(sequence_dim=2, use_local_output=True)
    for name in ("q", "k")
}
"""Of Qwen3: whole on each rank, for the heads that this rank has."""


def has(family: str, feature: str) -> bool:
    """True if a family has what a feature is about."""
    if feature == "auxiliary loss":
        return family in WITH_EXPERTS
    if feature == "tied":
        return family not in WITH_IMAGES
    if feature == "tensor parallel":
        return family in NAMED_AS_LLAMA
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
    model = model.float() if feature in LOW_PRECISION else model.double()
    if feature == "checkpointed":
        checkpointed: Any = model
        checkpointed.gradient_checkpointing_enable()
    if feature == "compiled":
        for module in model.modules():
            for child in module.children() if isinstance(module, nn.ModuleList) else ():
                child.compile(backend="aot_eager")  # pyright: ignore[reportUnknownMemberType]
    return model.train()


def microbatch_of(family: str, feature: str) -> Callable[[int], dict[str, torch.Tensor]]:
    dtype = torch.float32 if feature in LOW_PRECISION else torch.float64

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


def average(module: nn.Module, optimizer: torch.optim.Optimizer) -> AveragedModel:
    return AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # pyright: ignore[reportUnknownArgumentType]


def plain(family: str, feature: str, steps: int, output: Path) -> None:
    """The loop that one would write for one process."""
    model, made = build(family, feature), microbatch_of(family, feature)
    called: Any = model
    own, losses = optimizer(model.parameters()), list[float]()
    averaged = average(model, own) if feature == "average" else None
    precision = torch.float16 if feature == "fp16" else torch.bfloat16
    with torch.autocast("cpu", precision, enabled=feature in LOW_PRECISION):
        for step in range(steps):
            total = 0.0
            for index in range(step * MICROBATCHES, (step + 1) * MICROBATCHES):
                loss = called(**made(index)).loss / MICROBATCHES
                loss.backward()
                total += float(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            own.step()
            own.zero_grad()
            if averaged is not None:
                averaged.update_parameters(model)
            losses.append(total)
        model.eval()
        with torch.no_grad():
            held_out = sum(float(called(**made(index)).loss) for index in range(1000, 1004)) / 4
    averages = (
        {}
        if averaged is None
        else {f"average {name}": value for name, value in averaged.module.state_dict().items()}
    )
    keep(output, losses, {**model.state_dict(), **averages}, held_out)


def ours(family: str, feature: str, steps: int, output: Path) -> None:
    import recycle_runtime as recycle

    trainer = recycle.Trainer(
        build(family, feature),
        optimizer=optimizer,
        clip_norm=1.0,
        precision=feature if feature in LOW_PRECISION else None,
        moves_with_steps=average if feature == "average" else None,
        parallelize=tensor_parallel(family) if feature == "tensor parallel" else None,
    )
    data, losses = Data(family, feature), list[float]()
    for step in trainer.steps(MOST_STEPS):
        report = trainer.step(data)
        losses.append(report.loss)
        if step >= steps - 1 and report.live == WORKERS:
            trainer.stop()
        elif step >= steps - 1:
            # The worker that was killed is on its way.
            time.sleep(0.3)
    held_out = trainer.evaluate([data.microbatch(index) for index in range(1000, 1004)])
    averages = dict[str, torch.Tensor]()
    if feature == "average":
        kept = trainer.save(output / "kept")
        if trainer.is_main:
            weights = recycle.CheckpointWeights(kept, average=True)
            averages = {f"average {name}": value for name, value in weights.items()}
    if state := trainer.state_dict():
        keep(output, losses, {**state, **averages}, held_out)


def tensor_parallel(family: str) -> Callable[[nn.Module, Any], None]:
    plan = {**TENSOR_PLAN, **(NORMS_OF_HEADS if family == "Qwen3" else {})}

    def parallelize(module: nn.Module, mesh: Any) -> None:
        parallelize_module(module, mesh, plan)

    return parallelize


def keep(output: Path, losses: list[float], state: dict[str, torch.Tensor], held_out: float) -> None:
    torch.save(state, output / "state.pt")
    (output / "losses.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("family", choices=list(CONFIGS))
    parser.add_argument("feature", choices=FEATURES)
    parser.add_argument("--steps", type=int, default=6, help="of a run with all workers there, at least")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (plain if given.plain else ours)(given.family, given.feature, given.steps, given.output)


if __name__ == "__main__":
    main()
