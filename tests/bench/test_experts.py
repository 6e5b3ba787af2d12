"""Counts of the benchmark of experts."""

import numpy as np

from bench.experts import PEERS, POLICIES, TRACES, outcome, routing


def test_popularity_of_the_last_step_drops_the_least() -> None:
    for trace in TRACES[1:]:
        steps = list(routing(trace, 40, 3))
        found = {name: outcome(steps, every) for name, every in POLICIES.items()}
        assert found["every step"].dropped < found["every 10"].dropped < found["static"].dropped
        assert found["static"].moved == 0 < found["every step"].moved


def test_even_popularity_crosses_by_chance_alone() -> None:
    steps = [np.full((PEERS, 16), 128)] * 3
    assert outcome(steps, 0) == outcome(steps, 1)
    assert outcome(steps, 0).dropped == 0 and outcome(steps, 0).crossing == 0.75
