"""The folder of a job's checkpoints, and where in it a run begins. Needs no torch.

    DIR/step-00000100/layer-0-part-0/       a shard: its description and its tensors
    DIR/step-00000100/manifest.json         written last, by the coordinator
    DIR/step-00000200.1/                    a second try at the same step

Every try has a folder of its own, so files are never overwritten. A folder without a manifest is
no checkpoint, and goes when the next one is complete.
"""

import logging
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from recycle_runtime.checkpoint.manifest import FILE, CheckpointShape, Manifest, Origin, sync_folder
from recycle_runtime.checkpoint.soundness import check_sound
from recycle_runtime.state.names import ACCEPT, CheckpointError

_LOGGER = logging.getLogger(__name__)
_NAME = re.compile(r"step-(\d{8,18})(?:\.(\d{1,9}))?", re.ASCII)
KEPT = 2
"""Complete checkpoints that are not deleted."""


class Complete(NamedTuple):
    """A checkpoint that can be read."""

    name: str
    manifest: Manifest


class CheckpointFolder:
    """Finds, begins, completes and deletes checkpoints."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def look(self) -> tuple[list[Complete], list[str]]:
        """Complete checkpoints, the newest first; and what is wrong with those that only seem to be."""
        found: list[Complete] = []
        damaged: list[str] = []
        for name in reversed(self.names()):
            if not (self.folder / name / FILE).exists():
                continue
            try:
                found.append(Complete(name, Manifest.read(self.folder / name)))
            except CheckpointError as error:
                damaged.append(str(error))
        return found, damaged

    def make(self, name: str) -> None:
        """A new folder; OSError if there cannot be one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).mkdir()

    def complete(self, name: str, manifest: Manifest) -> None:
        """From now on this is the newest one."""
        sync_folder(self.folder)
        manifest.write(self.folder / name)

    def prune(self, name: str) -> None:
        """Delete what is older than this complete one, but for the last before it."""
        names = self.names()
        older = names[: names.index(name)]
        complete = [other for other in older if (self.folder / other / FILE).exists()]
        for other in older:
            if other not in complete[1 - KEPT :]:
                # Without its manifest it is no checkpoint any more, however far deleting it gets.
                (self.folder / other / FILE).unlink(missing_ok=True)
                shutil.rmtree(self.folder / other, ignore_errors=True)

    def drop(self, name: str) -> None:
        """Delete what there is of one that never became complete."""
        if is_name(name) and not (self.folder / name / FILE).exists():
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def names(self) -> list[str]:
        """Folders of checkpoints, the oldest first."""
        if not self.folder.is_dir():
            return []
        named = [(match, path) for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        keys = {path.name: (int(match[1]), int(match[2] or 0)) for match, path in named if path.is_dir()}
        return sorted(keys, key=lambda name: keys[name])


def checkpoint_name(step: int, attempt: int = 0) -> str:
    """Of a checkpoint; several attempts at one step have names of their own."""
    return f"step-{step:08}" + (f".{attempt}" if attempt else "")


def is_name(name: str) -> bool:
    """True if a checkpoint may be called so: nothing else is ever used as a path."""
    return _NAME.fullmatch(name) is not None


_COPY = "copy-"


def copy_name(step: int, run: int, attempt: int) -> str:
    """Of a copy of all stages in the memory of nodes."""
    return f"{_COPY}{step:08}.{run}.{attempt}"


def is_copy(name: str) -> bool:
    """True if this is the name of a copy in memory, and not of a folder."""
    return name.startswith(_COPY)


class Beginning(NamedTuple):
    """The first step of a run, and what it begins with."""

    checkpoint: str | None = None
    """The name of its folder, or of a copy in memory."""
    step: int = 0
    item: int = 0
    """The number of the first micro-batch in the program's sequence."""
    seed: int | None = None
    """That the checkpoint was made with."""
    words: str = ""
    """For the user, if there is something to say."""


def beginning(
    folder: str | Path,
    shape: CheckpointShape,
    steps: int,
    *,
    resume: bool,
    reads_all: bool = False,
    origin: Origin | None = None,
    accepts_changes: bool = False,
    may_be_finished: bool = False,
) -> Beginning:
    """CheckpointError when the folder's checkpoints are not what this run can go on from.

    `reads_all`: where there is a choice, the newest one is taken of which every byte is as it was written.
    `origin`: of this run. `accepts_changes`: also where its steps take other data. `may_be_finished`: it may
    have all steps, and is for what comes after them.
    """
    found, damaged = CheckpointFolder(folder).look()
    if not resume:
        if found or damaged:
            what = f"a checkpoint of step {found[0].manifest.step}" if found else "a damaged checkpoint"
            raise CheckpointError(
                f"{folder}: there is {what} already: resume from it with --resume, or name another folder"
            )
        return Beginning()
    if not found:
        if damaged:
            raise CheckpointError(damaged[0])
        return Beginning(words=f"{folder} has no complete checkpoint: starting with the first step")
    newest = _newest_sound(Path(folder), found, damaged) if reads_all and len(found) > 1 else found[0]
    path, manifest = Path(folder) / newest.name, newest.manifest
    _check(path, newest, shape)
    if manifest.step >= steps + may_be_finished:
        raise CheckpointError(
            f"{path}: has {manifest.step} steps already, and --steps asks for {steps} in all"
        )
    if manifest.origin is None:
        _LOGGER.info("%s: made by an older version, which does not say by which job, and on what data", path)
    elif not accepts_changes:
        _check_data_order(path, manifest.shape, shape)
    words = f"resuming with step {manifest.step} from {path}"
    if origin is not None and manifest.origin is not None and manifest.origin != origin:
        words += _differences(manifest.shape, manifest.origin, shape, origin)
    if damaged:
        words += f" (not used: {damaged[0]})"
    return Beginning(newest.name, manifest.step, manifest.items, manifest.seed, words)


def _check_data_order(path: Path, made: CheckpointShape, now: CheckpointShape) -> None:
    """Other pipelines, or another cut, make the same steps as long as these take as many micro-batches."""
    if made.per_step != now.per_step:
        raise CheckpointError(
            f"{path}: its steps have taken {_per_step(made)}, and those of this job take {_per_step(now)}: "
            f"{ACCEPT}"
        )


def _per_step(shape: CheckpointShape) -> str:
    return f"{shape.per_step} micro-batches ({shape.pipelines} x {shape.microbatches})"


def _differences(made: CheckpointShape, before: Origin, now: CheckpointShape, after: Origin) -> str:
    """Differences of a checkpoint from the run, to end a sentence; job and layers are known to fit."""
    rows = (
        ("pipelines", str(made.pipelines), str(now.pipelines)),
        ("stages", str(made.stages), str(now.stages)),
        ("cut", _cut(before), _cut(after)),
        ("micro-batches in a step", str(made.per_step), str(now.per_step)),
        ("workers", str(before.workers), str(after.workers)),
        ("job", before.job, after.job),
    )
    told = [f"{what} {old} then, {new} now" for what, old, new in rows if old != new]
    return f" ({'; '.join(told)})"


def _cut(origin: Origin) -> str:
    return "+".join(map(str, origin.cut)) or "of the program"


def _newest_sound(folder: Path, found: list[Complete], damaged: list[str]) -> Complete:
    """Newest checkpoint whose files are intact; errors of newer ones are added to `damaged`."""
    for complete in found:
        try:
            check_sound(folder / complete.name, complete.manifest)
        except CheckpointError as error:
            damaged.insert(0, str(error))
        else:
            return complete
    raise CheckpointError(f"no checkpoint in {folder} is as it was written: {damaged[0]}")


def _check(path: Path, found: Complete, shape: CheckpointShape) -> None:
    made = found.manifest.shape
    # By layer, shards fit any cut; whether they are the program's layers is for workers to see.
    by_what = ("layers", made.layers, shape.layers or made.layers)
    if not made.layers:
        by_what = ("stages", made.stages, shape.stages)
    for name, of_checkpoint, of_job in (by_what, ("tensor-parallel ranks", made.tensor, shape.tensor)):
        if of_checkpoint != of_job:
            raise CheckpointError(
                f"{path}: made by a job with {of_checkpoint} {name}, and this one has {of_job}: only "
                + ("the cut, " if made.layers else "")
                + "pipelines and micro-batches may differ"
            )
