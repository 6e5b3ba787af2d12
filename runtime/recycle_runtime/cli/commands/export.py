"""`recycle-run export`: the whole model of a checkpoint, in files that other programs read."""

import re
import shutil
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from recycle_runtime.cli.output import DONE, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments

if TYPE_CHECKING:
    from recycle_runtime.checkpoint.whole_model import CheckpointWeights

_FORMATS = ("safetensors", "torch", "dcp")
_TYPES = ("float64", "float32", "float16", "bfloat16")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "added_tokens.json",
)
"""Files that make a folder of weights a model for `from_pretrained`."""


def add_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a folder of them: then the newest"
    )
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="safetensors",
        help="safetensors as Hugging Face lays them out, one file for torch.load, or a folder for "
        "torch.distributed.checkpoint (default: safetensors)",
    )
    parser.add_argument(
        "--average",
        action="store_true",
        help="the average of the weights that `moves_with_steps` keeps (an AveragedModel), in their place",
    )
    parser.add_argument("--dtype", choices=_TYPES, help="convert floating-point tensors to this type")
    parser.add_argument(
        "--max-file-size", metavar="SIZE", default="5GB", help="of a safetensors file (default: 5GB)"
    )
    parser.add_argument(
        "--config-from",
        metavar="DIR",
        help="copy config.json and the files of the tokenizer from this folder, so that `from_pretrained` "
        "finds them",
    )


def run(arguments: Namespace, output: Output) -> int:
    most = _size(arguments.max_file_size)
    folder = Path(arguments.output)
    beside = [] if arguments.config_from is None else _files_beside(Path(arguments.config_from))
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; -o must name a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; -o must name a new or an empty folder")

    from recycle_runtime.checkpoint.whole_model import CheckpointWeights
    from recycle_runtime.state.names import CheckpointError
    from recycle_runtime.weights.safetensors import WeightsError

    try:
        weights = CheckpointWeights(arguments.checkpoint, dtype=arguments.dtype, average=arguments.average)
        if not weights.is_whole:
            raise UserError(
                f"{weights.folder}: its layers are in {weights.manifest.shape.tensor} tensor-parallel "
                "slices that the program has cut by hand, and how to join them only it knows: read each with "
                "recycle_runtime.CheckpointWeights(DIR, tp_rank)"
            )
        folder.mkdir(parents=True, exist_ok=True)
        _write(weights, folder, arguments.format, most)
    except (CheckpointError, WeightsError) as error:
        raise UserError(str(error)) from None
    for file in beside:
        shutil.copyfile(file, folder / file.name)
    output.say(f"wrote {len(weights)} tensors of step {weights.manifest.step} ({weights.folder}) to {folder}")
    return DONE


def _write(weights: "CheckpointWeights", folder: Path, form: str, most: int) -> None:
    import torch

    from recycle_runtime.files import writing_whole
    from recycle_runtime.weights.safetensors import write_folder

    if form == "safetensors":
        write_folder(folder, weights, most, {name: weights.described(name) for name in weights})
    elif form == "torch":
        with writing_whole(folder / "pytorch_model.bin") as file:
            torch.save(dict(weights), file)
    else:
        import torch.distributed.checkpoint as dcp

        dcp.save(dict(weights), checkpoint_id=folder, no_dist=True)


def _size(word: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|[KMG]i?)B?", word.strip(), re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--max-file-size must be like 5GB or 500MiB, got {word!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _files_beside(folder: Path) -> list[Path]:
    found = [folder / name for name in _BESIDE if (folder / name).is_file()]
    if folder / "config.json" not in found:
        raise UsageError(f"{folder}: there is no config.json in it")
    return found
