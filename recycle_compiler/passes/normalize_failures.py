"""Many failure patterns become one: peers of a stage are interchangeable, so only counts per stage matter.

    failed 0:1 2:1 1:3    -->    failed 2:1 1:1 2:3        (three pipelines)

Names move, workers do not: the failures of each stage are given to its last pipelines. `rename-workers` goes
the other way, from the plan for the normal form to the workers that have really failed.
"""

from dataclasses import dataclass

from recycle_compiler.ir.target import Target
from recycle_compiler.passes.pipeline import Pass


@dataclass(frozen=True, slots=True)
class NormalizeFailures(Pass[Target, Target]):
    """Give the failures of every stage to its last pipelines."""

    name = "normalize-failures"

    def run(self, target: Target) -> Target:
        return target.normal
