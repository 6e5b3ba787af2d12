"""Fault-free 1F1B, the schedule that plans are compared with."""

from dataclasses import replace

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.scheduling.rules import Setting, greedy_priority, rule_of
from recycle_compiler.scheduling.timing import Clock


def one_f_one_b_period(job: JobSpec) -> int:
    """Ticks per iteration of textbook 1F1B on the healthy grid: coupled backward, one barrier.

    Stage s runs S - s forwards ahead (fewer where memory holds fewer), then one backward and one forward in
    turn. Pipelines do not meet before the barrier, so one of them is enough.
    """
    one = replace(
        job, pipelines=1, failures=0, techniques=Techniques(adaptive=False, decouple=False, stagger=False)
    )
    graph = GRAPH_PASSES.run(Target(one, ()))
    problem = problem_of(one, (), graph.ops)
    clock = Clock(problem)
    timed = clock.time(clock.loops.place(greedy_priority(problem), rule_of(problem, Setting(ahead=0))))
    assert timed is not None
    return timed.period
