"""The published figures compared with ours, into docs/comparison.md: `python -m bench.comparison [names]`.

Sections that are not made again stay as they are.
"""

import argparse
from collections.abc import Callable

from bench import ablation, large_models, published_curve, real_traces, table_1
from bench.report import ROOT, Section

PAGE = ROOT / "docs" / "comparison.md"
MODULES = (published_curve, table_1, large_models, real_traces, ablation)
"""In the order of the page."""
SECTIONS: dict[str, Callable[[], Section]] = {
    module.__name__.removeprefix("bench."): module.section for module in MODULES
}
HEAD = """# Compared with other fault-tolerance systems

How ReCycle, Oobleck, Bamboo, Varuna, Chameleon and ElasWave would handle the same jobs and failures, by our
models of them (`recycle_compiler/fleet/policies/`, written from their publications; Chameleon's and
ElasWave's from their abstracts alone), and how close these models come to the published results.
`python -m bench.comparison` writes this page. None of these systems was run.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(SECTIONS)}")
    arguments = parser.parse_args()
    for name in arguments.names or SECTIONS:
        if name not in SECTIONS:
            parser.error(f"unknown figure {name}; there are {', '.join(SECTIONS)}")
    for name in arguments.names or SECTIONS:
        made = SECTIONS[name]()
        print(made.text(), flush=True)
        old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        PAGE.write_text(with_section(old, made), encoding="utf-8")


def with_section(page: str, made: Section) -> str:
    """The page with this section in place of the one of the same title."""
    _, *parts = page.split("\n## ")
    sections = {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}
    sections[made.title] = made.markdown()
    return "\n".join([HEAD, *(sections[m.TITLE] for m in MODULES if m.TITLE in sections)])


if __name__ == "__main__":
    main()
