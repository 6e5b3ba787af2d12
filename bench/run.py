"""Every benchmark, or those named, into docs/benchmarks.md: `python -m bench.run [names]`.

Sections that are not measured again stay as they are.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from bench import (
    agreement,
    beside_torch,
    control_plane,
    cuts,
    engine_beside_runs,
    fault_free,
    growth,
    interpreter_cost,
    on_demand,
    plans,
    random_gaps,
    recovery,
    sharded_state,
    slow_worker,
    solvers,
    start_up,
    throughput,
)
from bench.report import ROOT, Section

PAGE = ROOT / "docs" / "benchmarks.md"
MODULES = (
    plans,
    cuts,
    random_gaps,
    throughput,
    fault_free,
    sharded_state,
    solvers,
    on_demand,
    growth,
    agreement,
    engine_beside_runs,
    beside_torch,
    interpreter_cost,
    recovery,
    slow_worker,
    control_plane,
    start_up,
)
"""In the order of the page."""
SECTIONS: dict[str, Callable[[], Section]] = {
    module.__name__.removeprefix("bench."): module.section for module in MODULES
}
HEAD = """# Benchmarks

What plans are worth and what they cost, measured by `make bench`, which writes this page. Jobs are in
bench/jobs: uneven first and last stages, transfers, reductions of different length, memory that is tight.
"1F1B's memory" is what the first stage of 1F1B takes, one activation for every stage, on every worker.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(SECTIONS)}")
    parser.add_argument("-o", dest="page", type=Path, default=PAGE, help="the page (default: the docs')")
    arguments = parser.parse_args()
    for name in arguments.names or SECTIONS:
        if name not in SECTIONS:
            parser.error(f"unknown benchmark {name}; there are {', '.join(SECTIONS)}")
    for name in arguments.names or SECTIONS:
        made = SECTIONS[name]()
        print(made.text(), flush=True)
        # Written after each section: a run that is interrupted keeps what it has measured.
        old = arguments.page.read_text(encoding="utf-8") if arguments.page.exists() else ""
        arguments.page.write_text(with_section(old, made), encoding="utf-8")


def with_section(page: str, made: Section) -> str:
    """The page with this section in place of the one of the same title; those of other titles come last."""
    _, *parts = page.split("\n## ")
    sections = {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}
    sections[made.title] = made.markdown()
    titles = [module.TITLE for module in MODULES]
    ours = [sections[title] for title in titles if title in sections]
    others = [text for title, text in sections.items() if title not in titles]
    return "\n".join([HEAD, *ours, *others])


if __name__ == "__main__":
    main()
