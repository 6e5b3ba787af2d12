"""Other ways to deal out micro-batches in a large problem.

Usually a stage with failures deals out all its micro-batches in turn, and its workers run in step. Where few
of many workers have failed, that mixes all pipelines for the sake of one. If healthy workers keep their own,
only the micro-batches of failed workers are dealt out, so most pipelines stay as they were:

    stage of 4, one failed    in turn  0 1 2 0  1 2 0 1  2 0 1 2    at home  0 1 2 0  0 1 2 1  0 1 2 2

Where micro-batches do not divide by the workers of a stage, some workers have one more. In turn these are the
first ones, and if neighbouring stages have as many workers, some pipelines have one more on all of them: no
worker there has time to spare, and what one waits for makes all others wait. If every stage begins with the
micro-batches that are left over, on other workers than the stage before it, then those with one more are fed
by others that have time to spare:

    stages of 3, 8 to deal out    in turn  0 1 2 0 1 2 0 1    extras apart  0 1 0 1 2 0 1 2
                                           0 1 2 0 1 2 0 1                  2 0 0 1 2 0 1 2

No worker has more to do than ceil(all / live) either way.
"""

import numpy as np

from recycle_compiler.scheduling.problem import Ints, Problem, rerouted


def kept_at_home(problem: Problem) -> Problem | None:
    """The problem with such routes; None where its own are not those in turn, or both are the same."""
    if not is_dealt_in_turn(problem):
        return None
    pipeline, turn = np.divmod(np.arange(problem.units), problem.microbatches)
    host = problem.host.copy()
    for chunk, workers in enumerate(problem.hosts):
        first = workers[0] // problem.pipelines * problem.pipelines
        if workers[-1] >= first + problem.pipelines:
            return None
        host[:, chunk] = _mostly_home(first + pipeline, turn, workers)
    return None if (host == problem.host).all() else rerouted(problem, problem.hosts, host)


def extras_apart(problem: Problem) -> Problem | None:
    """The problem with such routes; None where its own are not those in turn, or nobody has one more."""
    if not is_dealt_in_turn(problem):
        return None
    number = numbers_in_turn(problem.pipelines, problem.microbatches)
    host = problem.host.copy()
    for chunk, workers in enumerate(problem.hosts):
        live, extra = len(workers), problem.units % len(workers)
        turn = np.where(number < extra, number + chunk * extra, number - extra)
        host[:, chunk] = np.array(workers)[turn % live]
    return None if (host == problem.host).all() else rerouted(problem, problem.hosts, host)


def numbers_in_turn(pipelines: int, microbatches: int) -> Ints:
    """In which order micro-batches are dealt out: one of every pipeline at a time."""
    pipeline, turn = np.divmod(np.arange(pipelines * microbatches), microbatches)
    return turn * pipelines + pipeline


def is_dealt_in_turn(problem: Problem) -> bool:
    """True if every stage, with workers of its own that are alike, deals out its micro-batches in turn."""
    if not problem.is_uniform or problem.pools < problem.chunks or problem.slow:
        return False
    number = numbers_in_turn(problem.pipelines, problem.microbatches)
    return all(
        (problem.host[:, chunk] == np.array(workers)[number % len(workers)]).all()
        for chunk, workers in enumerate(problem.hosts)
    )


def _mostly_home(home: Ints, turn: Ints, workers: tuple[int, ...]) -> Ints:
    """Worker of each micro-batch on one chunk: its home, or where that has failed the others in turn."""
    away = np.flatnonzero(~np.isin(home, workers))
    away = away[np.lexsort((home[away], turn[away]))]
    found = home.copy()
    found[away] = np.array(workers)[np.arange(len(away)) % len(workers)]
    return found
