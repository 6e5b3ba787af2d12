"""What is known about a complete checkpoint. Standard library only.

It is written last: without it there is no checkpoint.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from recycle_runtime.checkpoint.sealed_json import CheckpointError, read_sealed, write_sealed

FILE = "manifest.json"
PART_FILE = "part.json"
_KIND = "checkpoint manifest"


@dataclass(frozen=True, slots=True)
class Shape:
    """Of the job that made a checkpoint, or wants to go on from one."""

    stages: int
    pipelines: int
    tensor: int
    microbatches: int
    """Per pipeline and step."""

    @property
    def per_step(self) -> int:
        return self.pipelines * self.microbatches

    @property
    def parts(self) -> list[str]:
        """The folders that a checkpoint must have."""
        return [part_name(stage, part) for stage in range(self.stages) for part in range(self.tensor)]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything beside the parameters."""

    step: int
    """How many steps the parameters have seen."""
    items: int
    """How many micro-batches these steps have taken from the program's sequence."""
    seed: int
    shape: Shape
    parts: dict[str, int]
    """The checksum of every part's own description."""

    def write(self, folder: Path) -> None:
        """The checkpoint is complete once this returns."""
        write_sealed(folder / FILE, _KIND, asdict(self))

    @staticmethod
    def read(folder: Path) -> "Manifest":
        """CheckpointError unless the checkpoint is complete, as far as that shows without its tensors."""
        path = folder / FILE
        found, _ = read_sealed(path, _KIND)
        shape, parts = found.get("shape"), found.get("parts")
        if not _are_counts(found, ("step", "items", "seed")) or not isinstance(parts, dict):
            raise CheckpointError(f"{path}: damaged: something is missing in it")
        if not isinstance(shape, dict) or not _are_counts(
            cast(dict[str, Any], shape), tuple(field.name for field in fields(Shape))
        ):
            raise CheckpointError(f"{path}: damaged: it does not say how many stages there are")
        manifest = Manifest(found["step"], found["items"], found["seed"], Shape(**shape), parts)
        if sorted(manifest.parts) != sorted(manifest.shape.parts):
            raise CheckpointError(f"{path}: damaged: it does not name every stage")
        for name in manifest.shape.parts:
            if not (folder / name / PART_FILE).is_file():
                raise CheckpointError(f"{folder / name}: damaged: {PART_FILE} is missing")
        return manifest


def part_name(stage: int, part: int) -> str:
    """The folder of one stage, or of one of its tensor-parallel parts."""
    return f"stage-{stage}-part-{part}"


def _are_counts(found: dict[str, Any], names: tuple[str, ...]) -> bool:
    return all(type(found.get(name)) is int and found[name] >= 0 for name in names)
