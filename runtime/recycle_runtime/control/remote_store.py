"""The coordinator's store as torch sees it: one request, one answer, on a connection of its own."""

import base64
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from recycle_runtime.control.wire import Channel


class StoreError(RuntimeError):
    """The coordinator did not give what was asked for."""


class RemoteStore(dist.Store):  # pyright: ignore[reportUntypedBaseClass]
    """What process groups need to find each other."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._one_at_a_time = threading.Lock()
        channel.send({"type": "store"})

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], value=_packed(value))

    def get(self, key: str) -> bytes:
        return base64.b64decode(self._ask("get", [key])["values"][0])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [base64.b64decode(value) for value in self._ask("get", list(keys))["values"]]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until they are there; how long that may take is for the coordinator to say."""
        self._ask("wait", list(keys))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", list(keys))["value"])

    def add(self, key: str, value: int) -> int:
        return int(self._ask("add", [key], value=value)["value"])

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("remove", [key])["value"])

    def set_timeout(self, timeout: timedelta) -> None:
        """Waiting ends when the coordinator says so."""

    def close(self) -> None:
        self._channel.close()

    def _ask(self, operation: str, keys: list[str], **fields: Any) -> dict[str, Any]:
        with self._one_at_a_time:
            self._channel.send({"type": "store", "op": operation, "keys": keys, **fields})
            answer = self._channel.receive()
        if "error" in answer:
            raise StoreError(str(answer["error"]))
        return answer


def _packed(value: str | bytes) -> str:
    return base64.b64encode(value.encode() if isinstance(value, str) else bytes(value)).decode()
