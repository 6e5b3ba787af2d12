"""Values of options: numbers, words, workers. Imports nothing heavy."""

import argparse
from collections.abc import Callable, Sequence

TECHNIQUES = ("adaptive", "decouple", "stagger")
_DIGITS = 9
"""Of a number; nothing that is counted here comes near it."""


def one_of(words: Sequence[str]) -> Callable[[str], str]:
    def known(word: str) -> str:
        if word not in words:
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(words)}, got {word}")
        return word

    return known


def count(word: str) -> int:
    return _number(word, least=0)


def positive(word: str) -> int:
    return _number(word, least=1)


def _number(word: str, least: int) -> int:
    is_number = word.isascii() and word.isdigit()
    if is_number and len(word) > _DIGITS:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {least} and of at most {_DIGITS} digits, got {len(word)}"
        )
    if not is_number or int(word) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {word}")
    return int(word)


def technique_names(words: str) -> tuple[str, ...]:
    names = () if words == "none" else tuple(words.split(","))
    if odd := [name for name in names if name not in TECHNIQUES]:
        raise argparse.ArgumentTypeError(f"must be any of {','.join(TECHNIQUES)} or none, got {odd[0]!r}")
    return names


def workers(words: str) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({_worker(word) for word in words.split(",")}))


def slow_workers_value(words: str) -> tuple[tuple[tuple[int, int], float], ...]:
    found: dict[tuple[int, int], float] = {}
    for word in words.split(","):
        worker, _, factor = word.partition("=")
        if not _is_factor(factor):
            raise argparse.ArgumentTypeError(
                f"must be like 1:2=2.5, with a plain factor above 0 and up to 1000000, got {word!r}"
            )
        if _worker(worker) in found:
            raise argparse.ArgumentTypeError(f"names worker {worker.strip()} twice")
        found[_worker(worker)] = float(factor)
    return tuple(sorted(found.items()))


class Factors(tuple[float, ...]):
    """Of slow workers without names."""

    __slots__ = ()


def slow_workers_or_factors(words: str) -> tuple[tuple[tuple[int, int], float], ...] | Factors:
    """`1:2=3,0:1=2`, or `3,2` where workers have no names."""
    factors = words.split(",")
    if all(map(_is_factor, factors)):
        return Factors(map(float, factors))
    if "=" not in words:
        raise argparse.ArgumentTypeError(
            "must be like 1:2=2.5, or like 2.5,3 with --workers, with plain factors above 0 and up to "
            f"1000000, got {words!r}"
        )
    return slow_workers_value(words)


def _is_factor(word: str) -> bool:
    return word.isascii() and word.replace(".", "", 1).isdecimal() and 0 < float(word) <= 1e6


def _worker(word: str) -> tuple[int, int]:
    numbers = word.strip().split(":")
    if len(numbers) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        raise argparse.ArgumentTypeError(
            f"must be workers like 0:2,1:3 (pipeline:stage, from 0), got {word!r}"
        )
    return int(numbers[0]), int(numbers[1])
