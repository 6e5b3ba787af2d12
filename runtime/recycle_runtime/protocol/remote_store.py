"""The coordinator's store as torch sees it: one request, one answer, on a connection of its own.

Groups wait for a key, get it, and go on to the next one. So whatever lies beside a key comes with it, or
whoever knows which keys will be wanted gets them all in one answer, and most of these requests need no answer
from afar. What has come is not asked for again: keys that are waited for or got are set once and stay;
numbers that change are for `add`.
"""

import base64
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.messages.store import (
    StoreAdd,
    StoreAnswer,
    StoreCheck,
    StoreFolder,
    StoreGather,
    StoreGet,
    StoreNumber,
    StoreOpen,
    StoreRefusal,
    StoreRemove,
    StoreRequest,
    StoreSee,
    StoreSet,
    StoreValue,
    StoreValues,
)

A = TypeVar("A", bound=StoreAnswer)
_MOST_FOLDERS = 64
"""Number of folders whose keys are remembered."""


class StoreError(RuntimeError):
    """The coordinator did not give what was asked for."""


class RemoteStore(dist.Store):  # pyright: ignore[reportUntypedBaseClass]
    """Store by which process groups find each other."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._one_at_a_time = threading.Lock()
        self._told: dict[str, str] = {}
        self._known: dict[str, int] = {}
        """Number of keys of each folder that have been received."""
        self._gathered: dict[str, str] = {}
        """Values that the last request for several keys returned."""
        self._last_set = ""
        self._is_asking = False
        """True if an answer is on its way, or will never come."""
        channel.send(StoreOpen())

    def set(self, key: str, value: str | bytes) -> None:
        # Not answered: what is asked for next on this connection comes after it.
        self._channel.send(StoreSet(key, _packed(value)))
        self._last_set = key

    def get(self, key: str) -> bytes:
        return base64.b64decode(self._see(key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        found = self._ask(StoreGather(tuple(keys)), StoreValues).values
        self._gathered = dict(zip(keys, found, strict=True))
        return [base64.b64decode(value) for value in found]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until they are there; how long that may take is for the coordinator to say."""
        for key in keys:
            self._see(key)

    def check(self, keys: Sequence[str]) -> bool:
        if list(keys) == [self._last_set]:
            return True
        return bool(self._ask(StoreCheck(tuple(keys)), StoreNumber).value)

    def add(self, key: str, value: int) -> int:
        return self._ask(StoreAdd(key, value), StoreNumber).value

    def delete_key(self, key: str) -> bool:
        self._last_set = ""
        return bool(self._ask(StoreRemove(key), StoreNumber).value)

    def deleteKey(self, key: str) -> bool:  # noqa: N802
        """As a store within another asks for it."""
        return self.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        """Waiting ends when the coordinator says so."""

    def renew(self) -> bool:
        """True if another group, with other keys, can meet here; False while an answer is on its way."""
        if self._is_asking:
            return False
        self._told, self._known, self._gathered, self._last_set = {}, {}, {}, ""
        return True

    def close(self) -> None:
        self._channel.close()

    def _see(self, key: str) -> str:
        if key in self._gathered:
            return self._gathered[key]
        if key not in self._told:
            folder = key.rpartition("/")[0]
            told = self._ask(StoreSee(key, self._known.get(folder, 0)), StoreFolder).entries
            self._known[folder] = self._known.pop(folder, 0) + len(told)
            self._told.update((name, value) for name, value in told if value is not None)
            if len(self._known) > _MOST_FOLDERS:
                self._forget(next(iter(self._known)))
        if key not in self._told:
            # It was there, was taken away, and has come again.
            return self._ask(StoreGet(key), StoreValue).value
        return self._told[key]

    def _forget(self, folder: str) -> None:
        """Some come and go with every step; what is asked for again is sent again."""
        del self._known[folder]
        self._told = {key: value for key, value in self._told.items() if key.rpartition("/")[0] != folder}

    def _ask(self, request: StoreRequest, wanted: type[A]) -> A:
        with self._one_at_a_time:
            self._is_asking = True
            self._channel.send(request)
            answer = self._channel.receive()
            self._is_asking = False
        if isinstance(answer, StoreRefusal):
            raise StoreError(answer.why)
        if not isinstance(answer, wanted):
            raise StoreError(f"the store answers {type(request).__name__} with {type(answer).__name__}")
        return answer


def _packed(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
