"""The files of what scripts save, as the coordinator touches them: folders and manifests.

Needs no torch.
"""

from collections.abc import Iterable
from concurrent.futures import Future
from itertools import count
from pathlib import Path

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, CheckpointFolder, checkpoint_name
from recycle_runtime.checkpoint.manifest import CheckpointShape, Manifest, Origin
from recycle_runtime.coordinator.events import BeginSave, CompleteSave, SaveBegun, SaveClosed
from recycle_runtime.coordinator.file_thread import FileThread, RealFileThread
from recycle_runtime.files import sentence
from recycle_runtime.state.names import CheckpointError

_FIRST_BESIDE = 1000
"""In the folder of the job's own checkpoints, names begin here: those below are for these."""


class SaveFiles:
    """Carries out what the state machine orders; a thread waits for the disk."""

    def __init__(
        self,
        own: Path,
        shape: CheckpointShape,
        begins: Beginning,
        checkpoints: str | None = None,
        thread: FileThread | None = None,
        origin: Origin | None = None,
    ) -> None:
        """`own` is where things go that a script wants for a moment only; `checkpoints` the job's own."""
        self._own, self._shape, self._begins, self._origin = own, shape, begins, origin
        self._taken = None if checkpoints is None else Path(checkpoints).resolve()
        self._thread = thread or RealFileThread("saves")
        self._closing: list[tuple[int, Future[None]]] = []
        self._completed: set[str] = set()
        self._begun: list[str] = []

    def begin(self, order: BeginSave) -> SaveBegun:
        """Make a folder that nothing has been written to."""
        kept_folder = CheckpointFolder(order.folder or self._own)
        try:
            kept_folder.folder.mkdir(parents=True, exist_ok=True)
            first = _FIRST_BESIDE if kept_folder.folder.resolve() == self._taken else 0
            path = self._new_folder(kept_folder, order.step, first)
            self._begun.append(path)
            return SaveBegun(order.attempt, path, None)
        except OSError as error:
            return SaveBegun(order.attempt, str(kept_folder.folder), sentence(error))
        except ValueError as error:
            # No name of a folder has a null byte in it.
            return SaveBegun(order.attempt, str(kept_folder.folder), f"not the name of a folder: {error}")

    def _new_folder(self, kept_folder: CheckpointFolder, step: int, first: int) -> str:
        """Of a name that no attempt has had: writers of one that was dropped may not know it yet."""
        for attempt in count(first):
            name = checkpoint_name(step, attempt)
            if (path := str(kept_folder.folder / name)) in self._begun:
                continue
            try:
                kept_folder.make(name)
            except FileExistsError:
                continue
            return path
        raise AssertionError("there is a name that nobody has")

    def complete(self, order: CompleteSave) -> None:
        self._completed.add(order.path)
        self._closing.append((order.attempt, self._thread.submit(self._complete, order)))

    def _complete(self, order: CompleteSave) -> None:
        shape, path = self._shape.with_shards(order.shards), Path(order.path)
        if not shape.is_made_of(order.shards):
            raise CheckpointError("the workers' shards are not those of a whole model")
        if order.script is not None:
            order.script.write(path)
        items = self._begins.item + (order.step - self._begins.step) * shape.per_step
        manifest = Manifest(order.step, items, order.seed, shape, dict(order.shards), self._origin)
        CheckpointFolder(path.parent).complete(path.name, manifest)

    def drop(self, path: str) -> None:
        """Unless it is complete."""
        folder = Path(path)
        self._thread.submit(CheckpointFolder(folder.parent).drop, folder.name)

    def take(self) -> list[SaveClosed]:
        """Manifests that have reached the disk since, or cannot."""
        done = [closing for closing in self._closing if closing[1].done()]
        self._closing = [closing for closing in self._closing if closing not in done]
        return [SaveClosed(attempt, _why(future.exception())) for attempt, future in done]

    def close(self) -> None:
        self._thread.close()

    def remember(self, paths: Iterable[str]) -> None:
        """Folders that the coordinator before this one has begun, and that workers may be writing to."""
        self._begun += paths

    def sweep(self) -> None:
        """No worker writes any more: what is not complete never will be."""
        for path in (path for path in self._begun if path not in self._completed):
            CheckpointFolder(Path(path).parent).drop(Path(path).name)


def _why(error: BaseException | None) -> str | None:
    return None if error is None else sentence(error) if isinstance(error, OSError) else str(error)
