"""A shuffled order that is never written down: where each place leads is computed when it is asked for.

A Feistel network permutes numbers of an even count of bits; a number that comes out too large goes through
again until it does not, which permutes those that are small enough.
"""

from dataclasses import dataclass

_ROUNDS = 6
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shuffled:
    """The numbers from 0 to length - 1 in an order that depends on the seed alone."""

    length: int
    seed: int

    def __getitem__(self, place: int) -> int:
        """Index at this place of the permutation."""
        if not 0 <= place < self.length:
            raise IndexError(f"place {place} of {self.length}")
        half = max(1, ((self.length - 1).bit_length() + 1) // 2)
        found = self._through(place, half)
        while found >= self.length:
            found = self._through(found, half)
        return found

    def _through(self, number: int, half: int) -> int:
        left, right = number >> half, number & ((1 << half) - 1)
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mixed(self.seed, turn, right) & ((1 << half) - 1))
        return left << half | right


def mixed(*numbers: int) -> int:
    """64 bits that depend on all of them (splitmix64)."""
    value = 0
    for number in numbers:
        value = (value + (number & _WORD) + 0x9E3779B97F4A7C15) & _WORD
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
        value ^= value >> 31
    return value
