"""Times as people write them: `90`, `1.5h`, `1h30m`, `500ms`."""

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "y": 365 * 86400.0}
UNITS = ", ".join(_SECONDS)
_NUMBER = r"\d{1,15}(?:\.\d{1,9})?"
_PART = re.compile(rf"({_NUMBER})\s*(ms|min|s|m|h|d|y)")
_WHOLE = re.compile(rf"(?:{_NUMBER}|(?:{_NUMBER}\s*(?:ms|min|s|m|h|d|y)\s*)+)", re.ASCII)


def seconds_of(text: str) -> float | None:
    """Seconds; None where the text is no time. A number alone is seconds."""
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        return None
    parts = _PART.findall(text)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts) if parts else float(text)


def duration_text(seconds: float) -> str:
    """`2h`, `1h30m`, `45s`: as short as it can be said to the second."""
    whole = round(seconds)
    if whole != seconds and seconds < 60:
        return f"{seconds:g}s"
    parts = ((whole // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count) or "0s"
