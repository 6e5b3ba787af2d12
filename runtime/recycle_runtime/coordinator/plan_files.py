"""The files of the bundles in a book; each is written down before it is used. Standard library only."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import Fitted, PlanBook


class Notes(Protocol):
    """Where it is written down."""

    def write(self, **fields: Any) -> None: ...


class PlanFiles:
    """Members are sent these files when they need a plan."""

    def __init__(self, first: str, book: PlanBook, notes: Notes) -> None:
        self.paths = [Path(first)]
        self._book, self._notes = book, notes

    def recall(
        self,
        names: Sequence[str],
        standby: Collection[Worker],
        made_for: Mapping[int, Fitted],
        fitted: int | None,
    ) -> None:
        """What the coordinator before this one had; `made_for` and `fitted` count names from 0."""
        first = len(self.paths)
        for number, name in enumerate(names):
            self.paths.append(Path(name))
            self._book.add(Bundle.read(name), made_for.get(number))
        self._book.standby = frozenset(standby)
        self._book.fitted = None if fitted is None else first + fitted

    def add(self, path: Path, bundle: Bundle) -> None:
        self._notes.write(bundle=str(path))
        self.paths.append(path)
        self._book.add(bundle)

    def fit(self, path: Path, bundle: Bundle, made_for: Fitted) -> None:
        """A plan for these workers, to be used by them from now on."""
        slow = [[*worker, by] for worker, by in made_for.slow.items()]
        self._notes.write(bundle=str(path), live=sorted(made_for.live), slow=slow)
        self.paths.append(path)
        self._book.fitted = self._book.add(bundle, made_for)

    def unfit(self) -> None:
        """No plan is for certain workers any more."""
        if self._book.fitted is not None:
            self._notes.write(unfit=True)
            self._book.fitted = None

    def keep_on_standby(self, standby: Collection[Worker]) -> None:
        """These should get no micro-batches from now on, and no others."""
        self._notes.write(standby=sorted(standby))
        self._book.standby = frozenset(standby)
