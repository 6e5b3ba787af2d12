"""How commands speak: data to stdout, words to stderr."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from recycle_compiler.files import write_whole

DONE, INPUT_ERROR, USAGE, NO_PLAN, BUG, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 70, 130, 141


class UserError(Exception):
    """Something the user can mend, in one sentence."""

    def __init__(self, sentence: str, exit_code: int = INPUT_ERROR) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Output:
    """What the user allows: words or none, colour or none."""

    quiet: bool = False
    color: bool = True
    written: list[str] = field(default_factory=list[str])
    """Files that are in place by now, for whoever interrupts us."""

    def colored(self, stream: TextIO) -> bool:
        """Whether colour may be used on this stream."""
        return self.color and stream.isatty() and os.environ.get("TERM") != "dumb"

    def data(self, text: str) -> None:
        sys.stdout.write(text)

    def say(self, sentence: str) -> None:
        if not self.quiet:
            print(f"recyclec: {sentence}", file=sys.stderr)

    def error(self, sentence: str) -> None:
        print(f"recyclec: error: {sentence}", file=sys.stderr)

    def deliver(self, text: str, path: str | None) -> None:
        """The result of a command: into the file asked for, else to stdout."""
        if path is None:
            self.data(text)
            return
        write_whole(Path(path), text.encode("utf-8"))
        self.written.append(path)
