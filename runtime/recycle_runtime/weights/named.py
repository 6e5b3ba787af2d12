"""Weights by the names of the whole model, from a mapping, a file or a folder."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from recycle_runtime.files import reason
from recycle_runtime.weights.safetensors import (
    INDEX,
    SINGLE,
    SafetensorsFile,
    SafetensorsFolder,
    WeightsError,
)

Weights = Mapping[str, torch.Tensor]

_TORCH_SINGLE = "pytorch_model.bin"


def open_weights(source: Weights | str | Path) -> Weights:
    """By name; WeightsError if there are none.

    A path is a `.safetensors` file, a folder with one or with several and their index, or a file that
    `torch.save` wrote from a state dict.
    """
    if isinstance(source, Mapping):
        return _checked("the weights given", source)
    path = Path(source)
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)
    if path.name.endswith(".safetensors.index.json"):
        return SafetensorsFolder(path)
    return _from_torch(path)


def _from_folder(folder: Path) -> Weights:
    if (folder / SINGLE).is_file():
        return SafetensorsFile(folder / SINGLE)
    if (folder / INDEX).is_file():
        return SafetensorsFolder(folder / INDEX)
    if (folder / _TORCH_SINGLE).is_file():
        return _from_torch(folder / _TORCH_SINGLE)
    raise WeightsError(f"{folder}: there is no {SINGLE}, no {INDEX} and no {_TORCH_SINGLE} in it")


def _from_torch(path: Path) -> Weights:
    try:
        # Without `weights_only` a file could run anything.
        found: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise WeightsError(f"{path}: {reason(error)}") from None
    except (RuntimeError, pickle.UnpicklingError, ValueError, EOFError, KeyError) as error:
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise WeightsError(f"{path}: torch cannot read it as weights: {why}") from None
    return _checked(str(path), found)


def _checked(what: str, found: Any) -> Weights:
    if not isinstance(found, Mapping):
        raise WeightsError(f"{what}: a state dict was expected, got a value of type {type(found).__name__}")
    for name, tensor in cast(Mapping[Any, Any], found).items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise WeightsError(f"{what}: {name!r} is no tensor: a state dict has names and tensors alone")
    return cast(Weights, found)
