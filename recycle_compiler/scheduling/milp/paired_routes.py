"""Another way to deal out the micro-batches of failed workers, for small problems.

Usually healthy workers keep their own and share those of the failed one. Then all of the failed worker's
pipeline passes workers that have their hands full, and its stages idle before and after that. Here a healthy
peer joins it: the peer takes half of what it has to do from each of the two pipelines, and the others share
what is left of both.

    four pipelines of 8, the last has failed    usually  8 8 8 (3 3 2)    here  8 8 (3 5) (3 5)

Nobody has more to do than before, and there are as few routes, so that the MILP stays as small.
"""

import numpy as np

from recycle_compiler.scheduling.problem import Ints, Problem, rerouted


def paired(problem: Problem) -> Problem | None:
    """The problem with such routes; None where they would be the same or no peer is left to join."""
    if len({len(workers) for workers in problem.hosts}) == 1:
        return None
    host = problem.host.copy()
    for chunk, workers in enumerate(problem.hosts):
        first = workers[0] // problem.pipelines * problem.pipelines
        gone = [worker for worker in range(first, first + problem.pipelines) if worker not in workers]
        if 2 * len(gone) > len(workers):
            return None
        if gone:
            homes = first + np.arange(problem.units) // problem.microbatches
            host[:, chunk] = _shared(problem.host[:, chunk], homes, workers, gone)
    return rerouted(problem, problem.hosts, host)


def _shared(usual: Ints, homes: Ints, workers: tuple[int, ...], gone: list[int]) -> Ints:
    """Worker of each micro-batch on one chunk: everybody runs as many as usually."""
    room = {worker: int((usual == worker).sum()) for worker in workers}
    found = np.full(len(usual), -1, dtype=np.int64)

    def give(worker: int, home: int, most: int) -> None:
        waiting = np.flatnonzero((homes == home) & (found < 0))[: min(most, room[worker])]
        found[waiting] = worker
        room[worker] -= len(waiting)

    joined = list(reversed(workers))[: len(gone)]
    for worker, failed in zip(joined, gone, strict=True):
        half = room[worker] // 2
        give(worker, worker, room[worker] - half)
        give(worker, failed, half)
    others = [worker for worker in reversed(workers) if worker not in joined]
    for worker in others:
        give(worker, worker, len(usual))
    for home in [*joined, *gone]:
        for worker in [*others, *joined]:
            give(worker, home, len(usual))
    return found
