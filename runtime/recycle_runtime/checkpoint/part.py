"""One part of a checkpoint in a folder: its description as JSON, its tensors as bytes."""

import inspect
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

from recycle_runtime.checkpoint.manifest import PART_FILE
from recycle_runtime.checkpoint.sealed_json import CheckpointError, read_sealed, sync_folder, write_sealed
from recycle_runtime.checkpoint.storage import PartReader, PartWriter
from recycle_runtime.checkpoint.tree import Tensors, put_together

_KIND = "checkpoint part"
_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}
"""Every part is written by one process, whatever groups there are."""

Fields = dict[str, Any]


def write_part(
    folder: Path, about: Fields, tree: Any, tensors: Tensors, proceed: Callable[[], None] = lambda: None
) -> int:
    """The folder is there as a whole or not at all; the checksum of its description."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    writer = PartWriter(aside, proceed)
    try:
        _quietly(
            dcp.save, tensors, storage_writer=writer, planner=DefaultSavePlanner(flatten_state_dict=False)
        )
        fields = {"about": about, "byte_order": sys.byteorder, "tree": tree, "tensors": writer.described}
        checksum = write_sealed(aside / PART_FILE, _KIND, fields)
        aside.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return checksum


def read_part(folder: Path, about: Fields, checksum: int) -> Any:
    """The state, if it is what was asked for, and as it was written; CheckpointError if not."""
    path = folder / PART_FILE
    found, actual = read_sealed(path, _KIND)
    if actual != checksum:
        raise CheckpointError(f"{path}: not the one that the manifest was written for")
    if found.get("byte_order") != sys.byteorder:
        raise CheckpointError(f"{path}: written on a machine with another byte order")
    told, described = found.get("about"), found.get("tensors")
    if not isinstance(told, dict) or not isinstance(described, dict):
        raise CheckpointError(f"{path}: damaged: it describes no state")
    for name, value in about.items():
        if (other := cast(Fields, told).get(name)) != value:
            raise CheckpointError(f"{path}: has {name} {other}, and this run has {value}")
    reader = PartReader(folder, cast(dict[str, Fields], described))
    tensors = reader.room()
    _quietly(dcp.load, tensors, storage_reader=reader, planner=DefaultLoadPlanner(flatten_state_dict=False))
    try:
        return put_together(found["tree"], tensors)
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: damaged: it describes no state") from None


def _quietly(does: Callable[..., Any], tensors: Tensors, **options: Any) -> None:
    """Without the remark that there is one process; an error is its cause, not what is wrapped around."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    try:
        does(tensors, **options, **_ALONE)
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        raise (causes[0] if causes else RuntimeError(str(error))) from None
