"""Programs to train, and changes of them; nothing here needs the compiler."""

from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "programs"
MLP = str(EXAMPLES / "mlp.py")

_CHANGED = """
from pathlib import Path
exec(compile(Path({path!r}).read_text(), {path!r}, "exec"))
{change}
"""


def changed(folder: Path, program: str, change: str) -> str:
    """The program with some lines after it."""
    path = folder / "changed.py"
    path.write_text(_CHANGED.format(path=program, change=change))
    return str(path)
