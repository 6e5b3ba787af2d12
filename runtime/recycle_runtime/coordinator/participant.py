"""Participants: parts of a job that live beside its generations, each in a file of its own.

A participant owns the messages of workers that are meant for it, its fields of the journal, and its way back
after the coordinator was killed. `participants` has the list of all of them. Standard library only.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from recycle_runtime.coordinator.journal import Field, Lines


class Memory(NamedTuple):
    """How something that workers say, or that follows from it, outlives the coordinator."""

    what: str
    said: tuple[type[object], ...] = ()
    """Messages of workers."""
    journal: Mapping[str, Field] = MappingProxyType({})
    """Fields of lines."""
    again: str = ""
    """When workers say it again, if they do."""
    lost: str = ""
    """Why it need not be known any more, where it is neither written down nor said again."""


class Participant:
    """One that takes no part in anything."""

    memory: ClassVar[tuple[Memory, ...]] = ()

    def recall(self, lines: Lines) -> None:
        """The coordinator before this one has written this down."""
