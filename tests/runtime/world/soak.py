"""New seeds for as long as one likes; what goes wrong is made small and told: `make soak HOURS=1`."""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.runtime.world.jobs import sharded_jobs, world_jobs
from tests.runtime.world.scenarios import scenario
from tests.runtime.world.shrinking import shrunk, told
from tests.runtime.world.world import World

_SHARDED_EVERY = 3
"""Seeds from one that is also tried with a job whose optimizer state is in shards to the next."""


def main() -> int:
    """The exit status: 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="the first one; without it, one that was not tried before")
    parser.add_argument("--once", action="store_true", help="try that seed alone, and tell its story")
    parser.add_argument(
        "--standing", action="store_true", help="calls stand until they are aborted in all worlds"
    )
    parser.add_argument("--sharded", action="store_true", help="optimizer state is in shards in all worlds")
    arguments = parser.parse_args()
    seed = int(time.time()) * 1000 if arguments.seed is None else arguments.seed
    first, wrong, events = seed, 0, 0
    began, until = time.process_time(), time.monotonic() + 3600 * arguments.hours
    with tempfile.TemporaryDirectory() as folder:
        jobs, sharded = world_jobs(Path(folder)), sharded_jobs(Path(folder))
        while time.monotonic() < until:
            kinds = [] if arguments.sharded else [jobs]
            if arguments.sharded or seed % _SHARDED_EVERY == 0:
                kinds.append(sharded)
            for kind in kinds:
                found = scenario(seed, kind)
                found = replace(found, standing=found.standing or arguments.standing)
                outcome = World(found).run()
                events += outcome.events
                if outcome.wrong or arguments.once:
                    wrong += bool(outcome.wrong)
                    story = told(*shrunk(found)) if outcome.wrong else told(found, outcome)
                    print(story, end="\n\n", flush=True)
            if arguments.once:
                break
            seed += 1
    seconds = time.process_time() - began
    print(
        f"seeds {first} to {seed}: {wrong} went wrong; {events} events, "
        f"{events / seconds:.0f} a second of CPU time",
        file=sys.stderr,
    )
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
