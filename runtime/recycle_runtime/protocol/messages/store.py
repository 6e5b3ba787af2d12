"""The store that process groups meet at: a request, and its answer, on a connection of their own. No
torch."""

from dataclasses import dataclass

from recycle_runtime.protocol.codec import Integer, Natural


@dataclass(frozen=True, slots=True)
class StoreOpen:
    """Requests to the store follow."""


@dataclass(frozen=True, slots=True)
class StoreSet:
    """Keep this value. Not answered: what follows on this connection finds it there."""

    key: str
    value: str
    """Base64, as all values of the store."""


@dataclass(frozen=True, slots=True)
class StoreGet:
    """Answered when the key is there."""

    key: str


@dataclass(frozen=True, slots=True)
class StoreSee:
    """As StoreGet, with all that lies in the same folder beyond the first `known` keys."""

    key: str
    known: Natural


@dataclass(frozen=True, slots=True)
class StoreGather:
    """Answered when all of these keys are there."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """Are all of these there?"""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreAdd:
    """Add to a number; one that is not there is 0."""

    key: str
    value: Integer


@dataclass(frozen=True, slots=True)
class StoreRemove:
    """Forget this key."""

    key: str


@dataclass(frozen=True, slots=True)
class StoreValue:
    """The value that was asked for."""

    value: str


@dataclass(frozen=True, slots=True)
class StoreValues:
    """The values that were asked for, key by key."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """Keys and values in the order in which they came; None for one that was removed."""

    entries: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class StoreNumber:
    """A sum; of checks and removals, 1 for yes and 0 for no."""

    value: Integer


@dataclass(frozen=True, slots=True)
class StoreRefusal:
    """There is no answer, and this is why."""

    why: str


StoreRequest = StoreSet | StoreGet | StoreGather | StoreSee | StoreCheck | StoreAdd | StoreRemove


StoreAnswer = StoreValue | StoreValues | StoreFolder | StoreNumber | StoreRefusal
