"""Models for pipelines that are measured against each other: programs as recycle-run takes them."""

from typing import NamedTuple

from bench.report import ROOT

PROGRAM = ROOT / "examples" / "programs" / "gpt.py"
MICROBATCHES = 8
STEPS_DRAWN = 8
"""Their micro-batches come again and again."""
_WIDTH_LINE = "\nWIDTH = 64\n"
_DRAWN_BEFORE = f'''
import itertools

_draw = batches


def batches(seed):
    """A few steps' worth, made before any clock starts."""
    return itertools.cycle(list(itertools.islice(_draw(seed), {STEPS_DRAWN * MICROBATCHES})))
'''
_NOTHING = '''"""Four numbers, multiplied one after the other: what is left is the work around them."""

import torch

CLIP_NORM = 1.0


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(()))

    def forward(self, value):
        return value * self.factor


def build_stage(stage, stages):
    return torch.nn.Sequential(*(Scale() for _ in range(4 // stages)))


def loss(output, target):
    return (output - target).square().mean()


def batches(seed):
    number = 0
    while True:
        yield torch.full((4, 4), 0.5 + 0.001 * number), torch.zeros(4, 4)
        number += 1


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-5)
'''


def gpt_text(width: int) -> str:
    """The example program at some width, with its micro-batches drawn beforehand."""
    source = PROGRAM.read_text(encoding="utf-8")
    assert _WIDTH_LINE in source, f"{PROGRAM.name} says its width in another way now"
    return source.replace(_WIDTH_LINE, f"\nWIDTH = {width}\n") + _DRAWN_BEFORE


class Model(NamedTuple):
    """A model, and for how long it is trained."""

    name: str
    program: str
    rounds: int
    steps: int
    """In a turn."""
    profiled: bool = True
    """The zero-bubble plan is made for measured times."""


NOTHING = Model("nothing", _NOTHING + _DRAWN_BEFORE, 12, 40, profiled=False)
MODELS = (Model("64", gpt_text(64), 12, 4), Model("256", gpt_text(256), 5, 2), NOTHING)
