"""Keys and values, and who waits for them: the coordinator's side of the store. Standard library only.

A request is answered at once or, when it waits for keys, as soon as they are there. Keys that begin with
`g7/` belong to generation 7: they are dropped when the next one begins, and whoever waits for one of them is
told so instead of being left waiting. Values are base64 texts, as they travel.
"""

import base64
from collections.abc import Callable
from typing import NamedTuple

from recycle_runtime.control.wire import Message

Answer = Callable[[Message], None]


class _Waiting(NamedTuple):
    keys: list[str]
    answer: Answer
    wants_values: bool


class StoreTable:
    """The store."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._waiting: list[_Waiting] = []
        self._oldest = 0

    def request(self, message: Message, answer: Answer) -> None:
        """Set, get, wait, check, add or remove; anything else is an error to its sender."""
        operation, keys = message.get("op"), [str(key) for key in message.get("keys", [])]
        if operation == "set":
            self._put(keys[0], str(message["value"]))
            answer({})
        elif operation in ("get", "wait"):
            waiting = _Waiting(keys, answer, operation == "get")
            if not self._served(waiting):
                self._waiting.append(waiting)
        elif operation == "check":
            answer({"value": all(key in self._values for key in keys)})
        elif operation == "add":
            total = self._number(keys[0]) + int(message["value"])
            self._put(keys[0], base64.b64encode(str(total).encode()).decode())
            answer({"value": total})
        elif operation == "remove":
            answer({"value": self._values.pop(keys[0], None) is not None})
        else:
            answer({"error": f"the store does not know {operation!r}"})

    def begin(self, generation: int) -> None:
        """Everything of the generations before this one is history."""
        self._oldest = generation
        self._values = {key: value for key, value in self._values.items() if not self._is_history(key)}
        self._waiting = [entry for entry in self._waiting if not self._served(entry)]

    def forget(self, answer: Answer) -> None:
        """Its client is gone."""
        self._waiting = [entry for entry in self._waiting if entry.answer != answer]

    def _number(self, key: str) -> int:
        return int(base64.b64decode(self._values[key])) if key in self._values else 0

    def _put(self, key: str, value: str) -> None:
        if self._is_history(key):
            return
        self._values[key] = value
        self._waiting = [entry for entry in self._waiting if key not in entry.keys or not self._served(entry)]

    def _served(self, entry: _Waiting) -> bool:
        if any(map(self._is_history, entry.keys)):
            entry.answer({"error": "the workers are being grouped anew"})
            return True
        if not all(key in self._values for key in entry.keys):
            return False
        entry.answer({"values": [self._values[key] for key in entry.keys]} if entry.wants_values else {})
        return True

    def _is_history(self, key: str) -> bool:
        head, slash, _ = key.partition("/")
        return bool(slash) and head[:1] == "g" and head[1:].isdigit() and int(head[1:]) < self._oldest
