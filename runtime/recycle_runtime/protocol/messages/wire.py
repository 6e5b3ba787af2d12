"""Everything that the processes of a job say to each other. No torch.

Each message is a frozen dataclass; on the wire it is a JSON object whose `type` is the name of its class in
small letters (`AtBoundary` is `at_boundary`). docs/protocol.md shows who says what when.

    worker process -> coordinator    FromWorker      the first one is Join
    coordinator -> worker process    ToWorker
    agent -> coordinator             FromAgent       the first one is AgentJoin
    coordinator -> agent             ToAgent
    observer -> coordinator          FromObserver
    coordinator -> observer          ToObserver      everything that happens in the job
    store request, and its answer    StoreRequest, StoreAnswer, on a connection of their own

Where agents relay, what worker processes and the store say travels inside FromWorkers and ToWorkers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast, get_args

from recycle_runtime.protocol.codec import Natural, ProtocolError, Travels, decode, encode
from recycle_runtime.protocol.messages.agents import AgentOrder, AgentReport
from recycle_runtime.protocol.messages.checkpoints import CheckpointReply, TakeCheckpoint
from recycle_runtime.protocol.messages.generations import FromMember, ToMember
from recycle_runtime.protocol.messages.layer_moves import MoveOrder, MoveReply
from recycle_runtime.protocol.messages.neighbour_copies import CopyOrder, CopyReply
from recycle_runtime.protocol.messages.observers import FromObserver, ToObserver
from recycle_runtime.protocol.messages.scripts import ScriptRequest, ToScript
from recycle_runtime.protocol.messages.steps import Recall, StepReport
from recycle_runtime.protocol.messages.store import StoreAnswer, StoreOpen, StoreRequest

VERSION: Final = 11
"""Of what is said here; both ends of a connection must have the same."""

FromWorker = FromMember | StepReport | MoveReply | CheckpointReply | CopyReply | ScriptRequest
ToWorker = ToMember | Recall | MoveOrder | TakeCheckpoint | CopyOrder | ToScript


class Passed(NamedTuple):
    """A message that an agent passes on."""

    lines: tuple[Natural, ...]
    """Of the worker processes' connections to the agent, as it has numbered them."""
    message: "Message | None"
    """None: these connections have ended, or are to."""


_AsPassedOn = tuple[tuple[tuple[Natural, ...], dict[str, Any] | None], ...]


class Relayed(Travels):
    """Messages in the order in which they were said. They look alike, so of one that is of the same type as
    the one before it only those fields travel that differ."""

    def __init__(self, passed: tuple[Passed, ...]) -> None:
        self.passed = passed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relayed) and self.passed == other.passed

    def to_json(self) -> list[object]:
        found: list[object] = []
        before: dict[str, object] = {}
        for lines, message in self.passed:
            if message is None:
                found.append((lines, None))
                continue
            fields = to_fields(message)
            if fields["type"] == before.get("type"):
                found.append((lines, {key: item for key, item in fields.items() if item != before[key]}))
            else:
                found.append((lines, fields))
            before = fields
        return found

    @classmethod
    def from_json(cls, value: object) -> "Relayed":
        found: list[Passed] = []
        before: dict[str, object] = {}
        for lines, fields in decode(_AsPassedOn, value, "passed on"):
            if fields is None:
                found.append(Passed(lines, None))
                continue
            before = fields if "type" in fields else before | fields
            message = from_fields(before)
            if type(message) not in PASSED_ON:
                raise ProtocolError(f"{type(message).__name__} is not for agents to pass on")
            found.append(Passed(lines, message))
        return cls(tuple(found))


@dataclass(frozen=True, slots=True)
class FromWorkers:
    """Messages of worker processes of my node."""

    said: Relayed


@dataclass(frozen=True, slots=True)
class ToWorkers:
    """Pass this on to worker processes of your node."""

    told: Relayed


FromAgent = AgentReport | FromWorkers
ToAgent = AgentOrder | ToWorkers
Message = (
    FromWorker
    | ToWorker
    | FromAgent
    | ToAgent
    | FromObserver
    | ToObserver
    | StoreOpen
    | StoreRequest
    | StoreAnswer
)

PASSED_ON: Final = frozenset((*get_args(FromWorker | ToWorker | StoreRequest | StoreAnswer), StoreOpen))
"""Kinds of messages that agents relay."""


def type_name(kind: type[object]) -> str:
    """As it stands on the wire."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


KINDS: Final[Mapping[str, type[Message]]] = {type_name(kind): kind for kind in get_args(Message)}


_NAMES: Final[Mapping[type[object], str]] = {kind: name for name, kind in KINDS.items()}


def to_fields(message: Message) -> dict[str, object]:
    """Fields that travel."""
    return {"type": _NAMES[type(message)], **encode(message)}


def from_fields(fields: Mapping[str, object]) -> Message:
    """The message that has arrived; ProtocolError if it is none."""
    name = fields.get("type")
    if not isinstance(name, str) or name not in KINDS:
        raise ProtocolError(f"there is no message of type {str(name)[:40]!r}")
    rest = dict(fields)
    del rest["type"]
    return decode(KINDS[name], rest, name)


Context = TypeVar("Context")


Kind = TypeVar("Kind", bound=Message)


class Handlers(Generic[Context]):
    """Table of message handlers, by type of message. `Context` is who sent it."""

    def __init__(self) -> None:
        self._handlers: dict[type[object], Callable[[Context, Any], None]] = {}

    def on(self, kind: type[Kind], handler: Callable[[Context, Kind], None]) -> None:
        if kind in self._handlers:
            raise ValueError(f"{kind.__name__} is handled already")
        self._handlers[kind] = handler

    @property
    def kinds(self) -> Iterable[type[Any]]:
        """Of messages that are expected."""
        return self._handlers.keys()

    def handle(self, context: Context, message: Message) -> None:
        """ProtocolError if this message is not expected here."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ProtocolError(f"{_NAMES[type(message)]} is not expected here")
        handler(context, cast(Any, message))
