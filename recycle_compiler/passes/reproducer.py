"""What a crash of the compiler leaves behind: the IR that a pass was given and the passes to run, one text.

passes assign-slots canonicalize-schedule insert-transfers assign-buffers
graph
job figure3
...
"""

import tempfile
from pathlib import Path

from recycle_compiler.ir.job_text import TextError
from recycle_compiler.ir.levels import Level, parse_level, print_level
from recycle_compiler.passes.pipeline import PassError, run_passes
from recycle_compiler.passes.registry import passes_named


def write_reproducer(error: PassError) -> Path:
    """Write the text to a new file in the folder for temporary files; returns its path."""
    text = f"passes {' '.join(error.rest)}\n{print_level(error.before)}"
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix=f"recyclec-{error.rest[0]}-", suffix=".txt", delete=False
    ) as file:
        file.write(text)
    return Path(file.name)


def reproduce(text: str) -> Level:
    """Run the passes of a reproducer on its IR: what they make, or the same crash."""
    first, _, level = text.partition("\n")
    word, *names = first.split() or [""]
    if word != "passes":
        raise TextError(1, "expected `passes` and their names")
    try:
        passes = passes_named(tuple(names))
    except KeyError as cause:
        raise TextError(1, f"no pass is called {cause}") from cause
    return run_passes(passes, parse_level(level))
