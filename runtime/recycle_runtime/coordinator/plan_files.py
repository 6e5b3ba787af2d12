"""The files of the bundles in a book; each is written down before it is used. Standard library only."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Protocol

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.coordinator.plan_book import PlanBook


class Notes(Protocol):
    """Where it is written down."""

    def write(self, **fields: Any) -> None: ...


class PlanFiles:
    """Members are sent these files when they need a plan."""

    def __init__(self, first: str, book: PlanBook, notes: Notes) -> None:
        self.paths = [Path(first)]
        self._book, self._notes = book, notes

    def recall(self, names: Iterable[str], watchers: Collection[Worker]) -> None:
        """What the coordinator before this one had."""
        for name in names:
            self.paths.append(Path(name))
            self._book.add(Bundle.read(name))
        self._book.watchers = frozenset(watchers)

    def add(self, path: Path, bundle: Bundle) -> None:
        self._notes.write(bundle=str(path))
        self.paths.append(path)
        self._book.add(bundle)

    def watch(self, watchers: Collection[Worker]) -> None:
        """These should only watch from now on, and no others."""
        self._notes.write(watchers=sorted(watchers))
        self._book.watchers = frozenset(watchers)
