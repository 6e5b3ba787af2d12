"""Programs to train, and changes of them; nothing here needs the compiler."""

from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "programs"
MLP = str(EXAMPLES / "mlp.py")

_CHANGED = """
from pathlib import Path
exec(compile(Path({path!r}).read_text(), {path!r}, "exec"))
{change}
"""

_SPOILED = """
class Spoiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, is_bad):
        ctx.is_bad = is_bad
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (float("nan") if ctx.is_bad else 1.0), None


class First(nn.Linear):
    def forward(self, points):
        return Spoiled.apply(super().forward(points), bool(points[0, 0] == 7.0))


_batches = batches


def batches(seed):
    for number, (points, target) in enumerate(_batches(seed)):
        points[0, 0] = 7.0 if number == {number} else points[0, 0]
        yield points, target


"""


def spoiled(number: int) -> str:
    """Lines for a program whose first layer is a `First`: its gradient is no number in one micro-batch."""
    return _SPOILED.format(number=number)


def changed(folder: Path, program: str, change: str) -> str:
    """The program with some lines after it."""
    path = folder / "changed.py"
    path.write_text(_CHANGED.format(path=program, change=change))
    return str(path)
