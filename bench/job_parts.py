"""Parts of large_models and cuts, which share their plans: `python -m bench.job_parts [jobs]`.

BENCH_PARTS names the folder that they go to (bench/parts.py). Several such runs with different jobs fill one
folder; `python -m bench.comparison large_models` and `python -m bench.run cuts` then write the pages from it.
"""

import argparse

from bench import cuts, large_models


def main() -> None:
    jobs = list(dict.fromkeys([*large_models.JOBS, *cuts.ROWS]))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"any of {', '.join(jobs)}")
    arguments = parser.parse_args()
    for name in arguments.jobs or jobs:
        if name not in jobs:
            parser.error(f"unknown job {name}; there are {', '.join(jobs)}")
    for name in arguments.jobs or jobs:
        if name in large_models.JOBS:
            print(large_models.section((name,)).text(), flush=True)
        if name in cuts.ROWS:
            print(cuts.section({name: cuts.ROWS[name]}).text(), flush=True)


if __name__ == "__main__":
    main()
