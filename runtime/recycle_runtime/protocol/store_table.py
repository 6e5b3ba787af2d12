"""Keys and values, and who waits for them: the coordinator's side of the store. Standard library only.

A request is answered at once or, when it waits for keys, as soon as they are there. Keys that begin with
`g7/` belong to generation 7: they are dropped when the next one begins, and whoever waits for one of them is
told so instead of being left waiting. Values are base64 texts, as they travel.

Whoever meets others wants to know where each of them is, one after the other. So there is a request that is
answered with all that lies in the same folder, `g7/all` for `g7/all/3`, and has not been told before.
"""

import base64
from collections.abc import Callable
from typing import NamedTuple

from recycle_runtime.protocol.framing import Message

Answer = Callable[[Message], None]
_DIGITS = 20


class _Waiting(NamedTuple):
    keys: list[str]
    answer: Answer
    operation: str
    known: int
    """Of what was put into the folder of the key, as many as have been told: the first ones."""


class StoreTable:
    """The store."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._folders: dict[str, list[str]] = {}
        """Keys in the order in which they came; those that were removed among them."""
        self._waiting: dict[str, list[_Waiting]] = {}
        """By the first key that they lack."""
        self._oldest = 0

    def request(self, message: Message, answer: Answer) -> None:
        """Set, get, see, wait, check, add or remove; anything else is an error to its sender."""
        try:
            self._do(message, answer)
        except (LookupError, TypeError, ValueError) as error:
            answer({"error": f"the store does not understand this request: {error!r}"})

    def _do(self, message: Message, answer: Answer) -> None:
        operation, keys = message.get("op"), [str(key) for key in message.get("keys", [])]
        if operation == "set":
            self._put(keys[0], str(message["value"]))
            answer({})
        elif operation in ("get", "see", "wait"):
            known = max(0, int(message.get("known") or 0))
            if not keys:
                raise ValueError("no key")
            self._serve(_Waiting(keys, answer, operation, known))
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
        self._folders = {
            name: keys for name, keys in self._folders.items() if not self._is_history(f"{name}/")
        }
        waiting, self._waiting = self._waiting, {}
        for entries in waiting.values():
            for entry in entries:
                self._serve(entry)

    def forget(self, answer: Answer) -> None:
        """Its client is gone."""
        for key, entries in list(self._waiting.items()):
            self._waiting[key] = [entry for entry in entries if entry.answer != answer]

    def _number(self, key: str) -> int:
        return int(base64.b64decode(self._values[key])) if key in self._values else 0

    def _put(self, key: str, value: str) -> None:
        if self._is_history(key):
            return
        if key not in self._values:
            self._folders.setdefault(_folder(key), []).append(key)
        self._values[key] = value
        for entry in self._waiting.pop(key, ()):
            self._serve(entry)

    def _serve(self, entry: _Waiting) -> None:
        """Now, or when the first key that is lacking is there."""
        if any(map(self._is_history, entry.keys)):
            entry.answer({"error": "the workers are being grouped anew"})
            return
        missing = next((key for key in entry.keys if key not in self._values), None)
        if missing is not None:
            self._waiting.setdefault(missing, []).append(entry)
        elif entry.operation == "get":
            entry.answer({"values": [self._values[key] for key in entry.keys]})
        elif entry.operation == "see":
            told = self._folders[_folder(entry.keys[0])][entry.known :]
            entry.answer({"told": [[key, self._values.get(key)] for key in told]})
        else:
            entry.answer({})

    def _is_history(self, key: str) -> bool:
        head, slash, _ = key.partition("/")
        number = head[1:]
        is_generation = head[:1] == "g" and number.isascii() and number.isdigit() and len(number) < _DIGITS
        return bool(slash) and is_generation and int(number) < self._oldest


def _folder(key: str) -> str:
    return key.rpartition("/")[0]
