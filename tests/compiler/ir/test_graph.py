"""A graph tells what is wrong with it."""

from dataclasses import replace

import numpy as np

from recycle_compiler.ir.target import Target
from recycle_compiler.passes.build_graph import BuildGraph
from tests.support.jobs import unit_job


def test_ops_that_wait_for_each_other_are_named() -> None:
    good = BuildGraph().run(Target(unit_job(2, 1, 2), ()))
    assert list(good.verify()) == []
    first, then = int(good.before[0]), int(good.after[0])
    bad = replace(
        good,
        before=np.append(good.before, then),
        after=np.append(good.after, first),
        lag=np.append(good.lag, 0),
    )
    (said,) = bad.verify()
    assert "in or after a cycle: F0.0 of chunk 0 -> " in said
    assert said.endswith(" -> F0.0 of chunk 0")
