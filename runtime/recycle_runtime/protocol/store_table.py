"""Keys and values, and who waits for them: the coordinator's side of the store. No torch.

A request is answered at once or, when it waits for keys, as soon as they are there; one that sets a value
is not answered. Keys that begin with `g7/` belong to generation 7: they are dropped when the next one begins,
and a wait for one of them is refused instead of being left waiting. Values are base64 texts, as they travel.

A process that meets others asks where they are. If it knows whom it will meet it names them all at once; if
not, there is a request that is answered with all that lies in the same folder, `g7/all` for `g7/all/3`, and
has not been sent before.
"""

import base64
from collections.abc import Callable
from typing import NamedTuple

from recycle_runtime.protocol.messages.store import (
    StoreAdd,
    StoreAnswer,
    StoreCheck,
    StoreFolder,
    StoreGather,
    StoreGet,
    StoreNumber,
    StoreRefusal,
    StoreRemove,
    StoreRequest,
    StoreSee,
    StoreSet,
    StoreValue,
    StoreValues,
)

Answer = Callable[[StoreAnswer], None]
REGROUPING = "the workers are being grouped anew"
"""Reason why a wait for a key of a generation that is over has ended."""
_DIGITS = 20


class _Waiting(NamedTuple):
    request: StoreGet | StoreSee | StoreGather
    answer: Answer
    seen: int = 0
    """Of the keys that it waits for, how many were there."""

    @property
    def keys(self) -> tuple[str, ...]:
        return self.request.keys if isinstance(self.request, StoreGather) else (self.request.key,)


class StoreTable:
    """The store."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._folders: dict[str, list[str]] = {}
        """Keys in the order in which they came; those that were removed among them."""
        self._waiting: dict[str, list[_Waiting]] = {}
        """By the first key that they lack."""
        self._lacks: dict[Answer, str] = {}
        """The same by client, which asks for one thing at a time."""
        self._oldest = 0

    def request(self, message: StoreRequest, answer: Answer) -> None:
        """Answer it, at once or when the key that it waits for is there; what is set needs no answer."""
        match message:
            case StoreSet(key, value):
                self._put(key, value)
            case StoreGet() | StoreSee() | StoreGather():
                self._serve(_Waiting(message, answer))
            case StoreCheck(keys):
                answer(StoreNumber(int(all(key in self._values for key in keys))))
            case StoreAdd(key, value):
                answer(self._add(key, value))
            case StoreRemove(key):
                answer(StoreNumber(int(self._remove(key))))

    def begin(self, generation: int) -> None:
        """Everything of the generations before this one is history."""
        self._oldest = generation
        for folder in [name for name in self._folders if self._is_history(f"{name}/")]:
            for key in self._folders.pop(folder):
                self._values.pop(key, None)
        waiting, self._waiting = self._waiting, {}
        self._lacks.clear()
        for entries in waiting.values():
            for entry in entries:
                self._serve(entry)

    def forget(self, answer: Answer) -> None:
        """Its client is gone."""
        key = self._lacks.pop(answer, None)
        if key is not None:
            self._waiting[key] = [entry for entry in self._waiting[key] if entry.answer != answer]

    def _add(self, key: str, value: int) -> StoreAnswer:
        try:
            total = int(base64.b64decode(self._values[key])) + value if key in self._values else value
        except ValueError:
            return StoreRefusal(f"{key} holds no number")
        self._put(key, base64.b64encode(str(total).encode()).decode())
        return StoreNumber(total)

    def _remove(self, key: str) -> bool:
        """True if it was there; a folder that is empty goes too, since some come and go with every step."""
        was_there = self._values.pop(key, None) is not None
        folder = _folder(key)
        if not any(name in self._values for name in self._folders.get(folder, ())):
            self._folders.pop(folder, None)
        return was_there

    def _put(self, key: str, value: str) -> None:
        if self._is_history(key):
            return
        if key not in self._values:
            self._folders.setdefault(_folder(key), []).append(key)
        self._values[key] = value
        for entry in self._waiting.pop(key, ()):
            self._lacks.pop(entry.answer, None)
            self._serve(entry)

    def _serve(self, entry: _Waiting) -> None:
        """Now, or when the keys are there."""
        keys, answer = entry.keys, entry.answer
        if any(self._is_history(key) for key in keys[:1]):
            answer(StoreRefusal(REGROUPING))
            return
        for number in range(entry.seen, len(keys)):
            if keys[number] not in self._values:
                self._waiting.setdefault(keys[number], []).append(entry._replace(seen=number))
                self._lacks[answer] = keys[number]
                return
        answer(self._answer(entry.request))

    def _answer(self, request: StoreGet | StoreSee | StoreGather) -> StoreAnswer:
        match request:
            case StoreGet(key):
                return StoreValue(self._values[key])
            case StoreGather(keys):
                # One that has been removed meanwhile is not what it was.
                return StoreValues(tuple(self._values.get(key, "") for key in keys))
            case StoreSee(key, known):
                told = self._folders[_folder(key)][known:]
                return StoreFolder(tuple((name, self._values.get(name)) for name in told))

    def _is_history(self, key: str) -> bool:
        head, slash, _ = key.partition("/")
        number = head[1:]
        is_generation = head[:1] == "g" and number.isascii() and number.isdigit() and len(number) < _DIGITS
        return bool(slash) and is_generation and int(number) < self._oldest


def _folder(key: str) -> str:
    return key.rpartition("/")[0]
