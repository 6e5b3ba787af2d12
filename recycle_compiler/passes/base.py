"""What a pass is: a value with a name that turns one level of the compiler into the next, or the same."""

from typing import Any, Protocol


class Pass(Protocol):
    """Fields are options; `run` returns a new value and leaves its argument as it was."""

    @property
    def name(self) -> str: ...

    # Each pass narrows this to the level it takes and the level it makes.
    run: Any
