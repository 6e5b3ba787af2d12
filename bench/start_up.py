"""Start-up time of the commands: `python -m bench.start_up`."""

from bench.measure import RECYCLEC, run
from bench.report import Section, job_path

TITLE = "Start-up"
REPEATS = 5
COMMANDS = (("--version",), ("--help",), ("check", str(job_path("figure3"))))


def section() -> Section:
    """One row for each command."""
    return Section(
        title=TITLE,
        command="python -m bench.start_up",
        words=f"Best of {REPEATS} runs.",
        columns=("command", "seconds"),
        rows=tuple((f"recyclec {words[0]}", f"{_best(words):.2f}") for words in COMMANDS),
    )


def _best(words: tuple[str, ...]) -> float:
    return min(run([RECYCLEC, *words]).seconds for _ in range(REPEATS))


if __name__ == "__main__":
    print(section().text())
