"""Models of `transformers`, given whole, on one GPU: the loop one would write, and plans, taking turns.

    python -m bench.gpu_models compile DIR                   the plans; needs no GPU
    python -m bench.gpu_models run DIR --models llama,vit    on a GPU: the table, to stdout and DIR/models.md
    python -m bench.gpu_models profile DIR --models llama    on a GPU: where time goes, by torch.profiler
    python -m bench.gpu_models run DIR --tiny --device cpu   the same, so small that a CPU can do it

Each variant (eager, compiled by layer, gradient checkpointing, both) is compared with the plain loop of the
same variant. All contestants of a variant are in one process, have their own model with the same numbers, and
compute the same steps; a turn is two steps of one while the others wait, and who is first changes with every
round. Ratios are medians over rounds, with the least and the most of them beside. `--minutes` begins no
variant after so long.
"""

import argparse
import copy
import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.gpu_profile import Recording, difference, record, text
from bench.gpu_step import MICROBATCHES, PLANS, Contestant, OfPlan, compile_plans

WARM_UP, ROUNDS, STEPS = 4, 7, 2
VARIANTS = ("eager", "compiled", "checkpointing", "compiled and checkpointing")
HEAD = "| model | variant | contestant | ms a step | of the plain loop | least to most | losses apart |"


class ModelSize(NamedTuple):
    """Size of a model and of its micro-batches."""

    width: int
    layers: int
    rows: int
    length: int
    vocabulary: int


LARGE, TINY = ModelSize(1536, 14, 4, 1024, 32_000), ModelSize(32, 2, 2, 16, 64)


def _llama(size: ModelSize) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = max(2, size.width // 128)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.width * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=size.length,
    )
    return LlamaForCausalLM(config)


def _qwen(size: ModelSize) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = max(2, size.width // 128)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.width * 3,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=size.length,
        tie_word_embeddings=False,
    )
    return Qwen2ForCausalLM(config)


def _gpt2(size: ModelSize) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=max(2, size.width // 128),
        n_positions=size.length,
        tie_word_embeddings=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return GPT2LMHeadModel(config)


def _vit(size: ModelSize) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    labels: dict[str, Any] = {"num_labels": 1000}
    config = ViTConfig(
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=max(2, size.width // 128),
        image_size=_image(size),
        patch_size=16,
        **labels,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config)


def _mixtral(size: ModelSize) -> Any:
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    width, heads = size.width * 2 // 3 // 16 * 16, max(2, size.width // 192)
    config = MixtralConfig(
        vocab_size=size.vocabulary,
        hidden_size=width,
        intermediate_size=width * 7 // 4 // 16 * 16,
        num_hidden_layers=max(2, size.layers * 2 // 3),
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        num_local_experts=8,
        num_experts_per_tok=2,
        output_router_logits=True,
        max_position_embeddings=size.length,
    )
    # Its products of groups are not cast by autocast.
    model: Any = MixtralForCausalLM(config)
    return model.to(torch.bfloat16)


MODELS: dict[str, Callable[[ModelSize], Any]] = {
    "llama": _llama,
    "qwen": _qwen,
    "gpt2": _gpt2,
    "vit": _vit,
    "mixtral": _mixtral,
}


def _image(size: ModelSize) -> int:
    return 224 if size is LARGE else 32


class Trained:
    """A model, how it computes, and its data."""

    def __init__(self, name: str, variant: str, size: ModelSize) -> None:
        self.name, self.variant, self._size = name, variant, size
        self._model: Any = None
        self._items = [self._item(number) for number in range(MICROBATCHES)]

    @property
    def precision(self) -> str | None:
        return None if self.name == "mixtral" else "bf16"

    @property
    def is_compiled(self) -> bool:
        return "compiled" in self.variant

    def model(self) -> Any:
        import torch

        if self._model is None:
            # To draw so many numbers takes seconds, to copy them a fraction of one.
            torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
            with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
                self._model = MODELS[self.name](self._size).train().cpu()
            self._model.config.use_cache = False
        model = copy.deepcopy(self._model)
        if "checkpointing" in self.variant:
            model.gradient_checkpointing_enable()
        return model

    def microbatch(self, index: int) -> Any:
        return self._items[index % len(self._items)]

    @staticmethod
    def optimizer(parameters: Any) -> Any:
        import torch

        parameters = list(parameters)
        return torch.optim.AdamW(parameters, lr=1e-4, fused=parameters[0].is_cuda)

    def _item(self, number: int) -> dict[str, Any]:
        import torch

        size, generator = self._size, torch.Generator().manual_seed(number)
        if self.name == "vit":
            rows = size.rows * (size.length // 256) if size is LARGE else size.rows
            side = _image(size)
            return {
                "pixel_values": torch.randn(rows, 3, side, side, generator=generator),
                "labels": torch.randint(1000, (rows,), generator=generator),
            }
        tokens = torch.randint(size.vocabulary, (size.rows, size.length), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class PlainModel:
    """The usual loop on one GPU: autocast, gradients added up, clipping, fused AdamW."""

    def __init__(self, task: Trained, device: str) -> None:
        import torch

        self._torch, self._task, self._device = torch, task, torch.device(device)
        self._model = task.model().to(self._device)
        blocks = [each for each in self._model.modules() if isinstance(each, torch.nn.ModuleList)]
        for block in max(blocks, key=len) if task.is_compiled else ():
            block.compile()  # pyright: ignore[reportUnknownMemberType]
        self._parameters = list(self._model.parameters())
        self._optimizer = task.optimizer(self._parameters)
        self._number = 0

    def step(self, number: int) -> float:
        torch, device = self._torch, self._device
        total = torch.zeros((), device=device)
        for _ in range(MICROBATCHES):
            item = self._task.microbatch(self._number)
            self._number += 1
            if device.type == "cuda":
                item = {name: each.pin_memory().to(device, non_blocking=True) for name, each in item.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=self._task.precision is not None):
                loss = self._model(**item).loss / MICROBATCHES
            torch.autograd.backward(loss)
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(total)


def _program(task: Trained) -> Any:
    """As recycle.Trainer makes one of what it is given."""
    from recycle_runtime.program.loading import Program
    from recycle_runtime.trainer.names import model_names

    names: dict[str, Any] = {
        **model_names(task.model())[0],
        "microbatch": task.microbatch,
        "optimizer": task.optimizer,
        "CLIP_NORM": 1.0,
        "COMPILE": task.is_compiled,
    }
    if task.precision is not None:
        names["PRECISION"] = task.precision
    return Program(Path(__file__), names)


def contestants(task: Trained, folder: Path, device: str) -> dict[str, Callable[[], Contestant]]:
    """Constructors of the contestants, the plain loop first."""
    found: dict[str, Callable[[], Contestant]] = {"plain loop": lambda: PlainModel(task, device)}
    for number, name in enumerate(PLANS):
        plan = folder / f"step-{number}.plan"
        found[name] = partial(OfPlan, _program(task), plan, device)
        if device == "cuda":
            found[f"{name}, CUDA graphs"] = partial(OfPlan, _program(task), plan, device, graphs=True)
    return found


class Racer:
    """One contestant, its losses and its times."""

    def __init__(self, contestant: Contestant, device: str) -> None:
        self._contestant, self._device = contestant, device
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.turn(WARM_UP)
        self.seconds.clear()

    @property
    def has_graphs(self) -> bool:
        return isinstance(self._contestant, OfPlan) and self._contestant.has_graphs

    def turn(self, count: int) -> None:
        began = _now(self._device)
        for _ in range(count):
            self.losses.append(self._contestant.step(len(self.losses)))
        self.seconds.append((_now(self._device) - began) / count)

    def step(self) -> None:
        self.losses.append(self._contestant.step(len(self.losses)))


def race(task: Trained, folder: Path, device: str) -> list[str]:
    """The rows of one model in one variant. Only the plain loop and one other have memory at a time."""
    plain: Racer | None = None
    rows: list[str] = []
    for name, make in contestants(task, folder, device).items():
        try:
            own = Racer(make(), device)
            plain = own if plain is None else plain
            if "graphs" in name and not own.has_graphs:
                raise RuntimeError("was not captured")
            plain.seconds.clear()
            for number in range(ROUNDS):
                turns = list(dict.fromkeys((plain, own)))
                for each in turns[:: -1 if number % 2 else 1]:
                    each.turn(STEPS)
        except Exception as error:
            print(f"{task.name}, {task.variant}: {name}: {type(error).__name__}: {error}", flush=True)
            if plain is None:
                return []
            continue
        ratios = [one / other for one, other in zip(own.seconds, plain.seconds, strict=True)]
        apart = max(abs(a - b) / abs(b) for a, b in zip(own.losses, plain.losses, strict=False))
        row = (
            *(task.name, task.variant, name),
            *(f"{1e3 * median(own.seconds):.1f}", f"{median(ratios):.3f}"),
            *(f"{min(ratios):.3f} to {max(ratios):.3f}", f"{apart:.1e}"),
        )
        rows.append(f"| {' | '.join(row)} |")
        print(rows[-1], flush=True)
        del own
        _clear(device)
    return rows


def run(arguments: argparse.Namespace) -> None:
    """The table."""
    began = time.perf_counter()
    lines = [HEAD, "|---|---|---|---:|---:|---:|---:|"]
    print("\n".join(lines), flush=True)
    for variant in arguments.variants.split(","):
        for name in arguments.models.split(","):
            if time.perf_counter() - began > 60 * arguments.minutes:
                print(f"no time is left for {name}, {variant}", flush=True)
                continue
            task = Trained(name, variant, TINY if arguments.tiny else LARGE)
            try:
                lines += race(task, arguments.folder, arguments.device)
            except Exception as error:
                print(f"{name}, {variant}: {type(error).__name__}: {error}", flush=True)
            (arguments.folder / "models.md").write_text("\n".join([*lines, ""]))
            _clear(arguments.device)
            print(f"{name}, {variant}: {time.perf_counter() - began:.0f} s so far", flush=True)


def profile(arguments: argparse.Namespace) -> None:
    """Activity of host and device in a few steps of each contestant."""
    began = time.perf_counter()
    is_cuda = arguments.device == "cuda"
    for name in arguments.models.split(","):
        for variant in arguments.variants.split(","):
            task = Trained(name, variant, TINY if arguments.tiny else LARGE)
            plain: Recording | None = None
            for contestant, make in contestants(task, arguments.folder, arguments.device).items():
                if plain is not None and contestant not in arguments.contestants.split(";"):
                    continue
                racer = Racer(make(), arguments.device)
                found = record(racer.step, is_cuda=is_cuda)
                plain = plain or found
                title = f"{name} {variant} {contestant}"
                words = "-".join(title.replace("+", "").replace(",", "").split())
                parts = [
                    text(title, found),
                    *([difference(title, found, plain)] if found is not plain else []),
                ]
                (arguments.folder / f"{words}.txt").write_text("\n".join([*parts, ""]))
                print(parts[-1] if found is not plain else parts[0][:600], flush=True)
                print(f"({time.perf_counter() - began:.0f} s so far)", flush=True)
                del racer
                _clear(arguments.device)


def _clear(device: str) -> None:
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _now(device: str) -> float:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("compile", "run", "profile"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated (default: all)")
    parser.add_argument("--variants", default="eager,compiled", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--contestants", default="1F1B;1F1B, CUDA graphs", help="that are profiled beside the plain loop"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.device == "cpu":
        import torch

        torch.set_num_threads(1)
    if arguments.what == "compile":
        compile_plans(arguments.folder)
        return
    {"run": run, "profile": profile}[arguments.what](arguments)


if __name__ == "__main__":
    main()
