"""Observers of the passes: files of numbered IR, and IR printed when it changes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from recycle_compiler.ir.text import print_level
from recycle_compiler.passes.pipeline import Observer, PassDone
from recycle_compiler.passes.text import print_pass, print_reproducer
from recycle_runtime.cli.output import Output
from recycle_runtime.files import WriteError, reason


def observers_for(dump_dir: str | None, print_after_change: bool, output: Output) -> Sequence[Observer]:
    """The observers that the command line asks for."""
    observers: list[Observer] = []
    if dump_dir is not None:
        observers.append(Dump(Path(dump_dir), output))
    if print_after_change:
        observers.append(PrintChanges(output))
    return observers


class Dump:
    """Writes DIR/<failures>-failed/<number>-<pass>.txt; what an earlier run left there is removed first.

    Each file is a reproducer: what the pass made, below the passes that followed. Numbers go on where several
    pipelines run for as many failures.
    """

    def __init__(self, folder: Path, output: Output) -> None:
        self._folder = folder
        self._written = output.written
        self._numbers: Counter[int] = Counter()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_dumps(folder)
        except OSError as error:
            raise WriteError(folder, reason(error)) from error

    def __call__(self, step: PassDone) -> None:
        failures = len(step.value.failed)
        self._numbers[failures] += 1
        path = self._folder / f"{failures}-failed" / f"{self._numbers[failures]:02}-{step.done.name}.txt"
        text = f"# after {print_pass(step.done)}\n{print_reproducer(step.value, step.rest)}"
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise WriteError(path, reason(error)) from error
        if str(self._folder) not in self._written:
            self._written.append(str(self._folder))


def _remove_dumps(folder: Path) -> None:
    """Remove files that a dump wrote, and folders that are empty then; nothing else is ours."""
    for plan in sorted(folder.glob("*-failed")):
        if not plan.name.removesuffix("-failed").isdigit() or not plan.is_dir():
            continue
        for dump in plan.glob("[0-9][0-9]-*.txt"):
            dump.unlink()
        if not any(plan.iterdir()):
            plan.rmdir()


class PrintChanges:
    """Prints to stderr what each pass made, unless it left the text as it was."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last = ""

    def __call__(self, step: PassDone) -> None:
        text = print_level(step.value)
        if text != self._last:
            self._output.words(f"after {step.number:02} {print_pass(step.done)}:\n{text}\n")
        self._last = text
