"""A bundle in which some of the fastest plans are in groups of pipelines."""

from pathlib import Path

from recycle_compiler.cli.main import main

UNEVEN = """job uneven {
  parallel { pipeline = 1  data = 8 }
  batch { microbatches = 2 }
  layers { count = 4  forward = 1  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 3 }
}
"""
"""Sixteen micro-batches: of five workers that hold all layers, one has four of them."""
FIVE = "2x2,2x2@13+4x1@3"
"""What five workers do better: two pipelines of two stages, and one worker with all layers."""


def write_grouped(folder: Path) -> tuple[str, str]:
    """The job and its bundle; with three failures the fastest plan is `FIVE`."""
    source, plan = folder / "uneven.job", folder / "uneven.plan"
    source.write_text(UNEVEN)
    assert main(["compile", str(source), "-o", str(plan), "--jobs", "1", "--groups", "on"]) == 0
    return str(source), str(plan)
