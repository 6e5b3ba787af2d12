"""Schedules written by hand, small enough to count every slot; SLOT ticks each."""

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_schedule

_COMMON = """\
reduce 0 0
activation 1000 1000
kept_for_weight 1000 1000
parameters 0 0
techniques adaptive decouple stagger
failures 0
solver time_limit_ns 60000000000 gap_ppm 0 seed 0
"""

ONE_PIPELINE = """\
schedule
job one-pipeline
shape stages 2 pipelines 1 tensor 1 microbatches 3
units slot count
forward 1000 1000
backward_input 1000 1000
backward_weight 1000 1000
optimizer 1000 1000
transfer 1000
capacity 2000 unlimited
{common}failed
release 0 2
claims makespan 18 period 19 lower_bound 15 cut_short no reason rounds of stage 0
worker 0:0  0 F0.0  1 F0.1  5 I0.0  8 I0.1  9 W0.0  10 W0.1  11 F0.2  16 I0.2  17 W0.2  18 R  18 O
worker 0:1  2 F0.0  3 I0.0  4 W0.0  5 F0.1  6 I0.1  7 W0.1  13 F0.2  14 I0.2  15 W0.2  16 R  16 O
"""
"""Two activations on stage 0, and every message takes a slot."""

FIVE_TO_THREE_AND_TWO = """\
schedule
job five
shape stages 2 pipelines 5 tensor 1 microbatches 1
units slot count
forward 2000 1000
backward_input 1000 1000
backward_weight 1000 1000
optimizer 1000 1000
transfer 0
capacity unlimited unlimited
{common}failed 1:0 2:0 3:0 4:0 2:1 3:1 4:1
release 0 2
claims makespan 20 period 21 lower_bound 21 cut_short no reason load of stage 0
worker 0:0  0 F0.0  2 F1.0  4 F2.0  6 F3.0  8 F4.0  10 I0.0  11 W0.0  12 I1.0  13 W1.0  14 I2.0  15 W2.0  \
16 I3.0  17 W3.0  18 I4.0  19 W4.0  20 R  20 O
worker 0:1  4 F1.0  5 I1.0  6 F2.0  7 I2.0  8 F3.0  9 I3.0  10 W1.0  11 W2.0  12 W3.0  13 R  13 O
worker 1:1  2 F0.0  3 I0.0  4 W0.0  10 F4.0  11 I4.0  12 W4.0  13 R  13 O
"""
"""One worker of stage 0 feeds two of stage 1; the one with two micro-batches waits five slots in between."""

TWO_WINDOWS = """\
schedule
job two-windows
shape stages 2 pipelines 2 tensor 1 microbatches 2
units slot count
forward 4000 1000
backward_input 1000 1000
backward_weight 1000 3000
optimizer 3000 6000
transfer 0
capacity unlimited unlimited
{common}failed
release 0 5
claims makespan 16 period 17 lower_bound 16 cut_short no reason load of stage 1
worker 0:0  0 F0.0  4 F0.1  8 I0.0  9 W0.0  10 I0.1  11 W0.1  14 R  14 O
worker 1:0  0 F1.0  4 F1.1  8 I1.0  9 W1.0  12 I1.1  13 W1.1  14 R  14 O
worker 0:1  5 F0.0  6 I0.0  8 F0.1  9 I0.1  10 W0.0  13 W0.1  16 R  16 O
worker 1:1  5 F1.0  6 I1.0  7 W1.0  10 F1.1  11 I1.1  12 W1.1  16 R  16 O
"""
"""The window of stage 0 ends with work that waited for stage 1 to open, and the other way round."""


def hand_made(text: str) -> Schedule:
    """The schedule, checked by the rules of its level."""
    schedule = parse_schedule(text.format(common=_COMMON))
    assert list(schedule.verify()) == []
    return schedule
