"""The same channels for tensors of one GPU: a message is a copy on a stream of its own, as with NCCL."""

import threading
from collections import deque
from typing import Any

import torch

from tests.runtime.transport.loopback import PATIENCE, LoopbackGroups, Message, Wire


class _Post:
    """A send or receive; what was queued on the stream that posted it comes first, on the GPU."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.ready = torch.cuda.Event()
        self.ready.record()
        self.done: Any = None
        self.matched = threading.Event()

    def wait(self) -> None:
        if not self.matched.wait(PATIENCE):
            raise TimeoutError("nobody is at the other end")
        torch.cuda.current_stream().wait_event(self.done)

    def is_completed(self) -> bool:
        return self.matched.is_set() and self.done.query()


class _GpuWire(Wire):
    def __init__(self) -> None:
        super().__init__()
        self._posts: dict[int, deque[_Post]] = {}
        self._guard = threading.Lock()
        self._stream = torch.cuda.Stream()

    def post(self, queue: deque[Message], tensor: torch.Tensor) -> Any:
        post = _Post(tensor)
        with self._guard:
            self._posts.setdefault(id(queue), deque()).append(post)
            sent = self._posts.setdefault(id(self.sent), deque())
            wanted = self._posts.setdefault(id(self.wanted), deque())
            while sent and wanted:
                self._copy(sent.popleft(), wanted.popleft())
        return post

    def _copy(self, sent: _Post, wanted: _Post) -> None:
        assert sent.tensor.shape == wanted.tensor.shape, "not the message that was expected"
        for post in (sent, wanted):
            self._stream.wait_event(post.ready)
            post.tensor.record_stream(self._stream)
        done = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            wanted.tensor.copy_(sent.tensor)
            done.record()
        for post in (sent, wanted):
            post.done = done
            post.matched.set()


class GpuLoopbackGroups(LoopbackGroups):
    """Between threads that use one GPU."""

    def new_wire(self) -> Wire:
        return _GpuWire()
