"""Findings: what was looked at, what was found, and what should be done about it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the report."""

    subject: str
    found: str
    advice: str = ""
    """Advice to the user; empty if all is well."""


def findings_table(findings: Sequence[Finding]) -> str:
    """One row each; advice stands below what it is about."""
    width = max((len(finding.subject) for finding in findings), default=0)
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.subject:<{width}}  {finding.found}")
        if finding.advice:
            lines.append(f"{'':<{width}}  ! {finding.advice}")
    return "".join(f"{line}\n" for line in lines)


def as_json(findings: Iterable[Finding]) -> str:
    """A list of objects, one per line."""
    rows = ",\n  ".join(json.dumps(asdict(finding)) for finding in findings)
    return f"[\n  {rows}\n]\n"


def from_json(text: str) -> list[Finding]:
    """ValueError if these are no findings."""
    try:
        return [Finding(**{name: str(value) for name, value in row.items()}) for row in json.loads(text)]
    except (TypeError, AttributeError) as error:
        raise ValueError("no findings") from error


def package(name: str, needed: str) -> Finding:
    """The version of a package that is installed; `needed` says what is missing without it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, "not installed", needed)
