"""A progress bar for planning, on a terminal only; it leaves nothing behind."""

from types import TracebackType
from typing import Self


class PlanProgress:
    """Counts plans as they are made; silent unless shown."""

    def __init__(self, title: str, shown: bool, color: bool = True) -> None:
        self._title = title
        self._bar = None
        if shown:
            # Only a terminal pays for loading rich.
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True, no_color=not color), transient=True)
            self._task = self._bar.add_task(title, total=None)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """`done` plans of `total` are ready."""
        if self._bar:
            self._bar.update(
                self._task, completed=done, total=total, description=f"{self._title} {done}/{total}"
            )
