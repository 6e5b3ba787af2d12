"""Events in the order of simulated time, and coroutines that wait for them; all on one thread.

Every event belongs to a process, or to the world itself. Those of a process that is gone are dropped, those
of one that is stopped wait until it goes on.
"""

import heapq
import queue
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any


class TaskEnded(BaseException):
    """A thread that another has replaced does nothing any more."""


class Pending:
    """Something that will be there, or will fail; one coroutine may wait for it."""

    __slots__ = ("error", "is_done", "task", "value")

    def __init__(self) -> None:
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.task: Task | None = None

    def give(self, value: Any = None) -> None:
        if not self.is_done:
            self.is_done, self.value = True, value
            self._wake()

    def fail(self, error: Exception) -> None:
        if not self.is_done:
            self.is_done, self.error = True, error
            self._wake()

    def _wake(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            task.process.loop.soon(task.process, task.step)

    def __await__(self) -> Generator["Pending", None, Any]:
        if not self.is_done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value


class Task:
    """One thread of a process."""

    __slots__ = ("_work", "number", "process")

    def __init__(self, process: "LoopProcess", work: Coroutine[Any, Any, Any], number: int) -> None:
        self.process, self._work, self.number = process, work, number

    def step(self) -> None:
        """Until it waits for something."""
        process = self.process
        process.running = self
        try:
            pending: Pending = self._work.send(None)
        except (StopIteration, TaskEnded):
            return
        except Exception as error:
            process.crashed(error)
            return
        finally:
            process.running = None
        pending.task = self

    def close(self) -> None:
        self._work.close()


class LoopProcess:
    """A process as far as events are concerned."""

    def __init__(self, loop: "Loop", name: str) -> None:
        self.loop, self.name = loop, name
        self.number = 0
        self.is_alive = True
        self.is_stopped = False
        self.deferred: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """What waits until it goes on."""
        self.running: Task | None = None
        self._tasks: list[Task] = []
        self._started = 0

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """A thread of it."""
        if not self.is_alive:
            return
        self._started += 1
        task = Task(self, work(), self._started)
        self._tasks.append(task)
        self.loop.soon(self, task.step)

    def crashed(self, error: Exception) -> None:
        """A thread of it has raised an error that nobody handles."""
        raise error

    def stop(self) -> None:
        self.is_stopped = True

    def go_on(self) -> None:
        self.is_stopped = False
        deferred, self.deferred = self.deferred, deque()
        for call, arguments in deferred:
            self.loop.soon(self, call, *arguments)

    def end(self) -> None:
        """Nothing of it happens any more; its coroutines are closed without effect."""
        self.is_alive = False
        self.deferred.clear()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task is not self.running:
                _close(task)


def _close(task: Task) -> None:
    """Close coroutines; errors on their way out are seen by nobody."""
    with suppress(Exception, TaskEnded):
        task.close()


class Loop:
    """Time, and what happens when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """That have happened."""
        self.digest = 0
        """Of when each happened, and to whom."""
        self.is_halted = False
        """True if nothing more should happen."""
        self._heap: list[tuple[float, int, LoopProcess | None, Callable[..., None], tuple[Any, ...]]] = []
        self._soon: deque[tuple[LoopProcess | None, Callable[..., None], tuple[Any, ...]]] = deque()
        """What happens before time goes on."""
        self._scheduled = 0

    def at(
        self, time: float, process: LoopProcess | None, call: Callable[..., None], *arguments: Any
    ) -> None:
        self._scheduled += 1
        if time < self.now:
            time = self.now
        heapq.heappush(self._heap, (time, self._scheduled, process, call, arguments))

    def soon(self, process: LoopProcess | None, call: Callable[..., None], *arguments: Any) -> None:
        self._soon.append((process, call, arguments))

    def sleep(self, process: LoopProcess, seconds: float) -> Pending:
        pending = Pending()
        self.at(self.now + seconds, process, pending.give)
        return pending

    def turn(self, most: int) -> bool:
        """The next events, so many; False if there is none, or nothing more should happen."""
        heap, soon, pop = self._heap, self._soon, heapq.heappop
        for _ in range(most):
            if soon:
                process, call, arguments = soon.popleft()
            elif heap:
                self.now, _, process, call, arguments = pop(heap)
            else:
                return False
            number = 0
            if process is not None:
                if not process.is_alive:
                    continue
                if process.is_stopped:
                    process.deferred.append((call, arguments))
                    continue
                number = process.number
            self.events += 1
            # Of numbers alone, so the same in every process.
            self.digest = hash((self.digest, self.now, number))
            call(*arguments)
            if self.is_halted:
                return False
        return True


class SimulatedQueue:
    """Between the threads of a process."""

    def __init__(self, process: LoopProcess) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._waiting: Pending | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.give()

    async def get(self, seconds: float | None = None) -> Any:
        while not self._items:
            waiting = self._waiting = Pending()
            if seconds is not None:
                loop = self._process.loop
                loop.at(loop.now + seconds, self._process, waiting.give, "late")
            if await waiting == "late":
                raise queue.Empty
        return self._items.popleft()

    def qsize(self) -> int:
        return len(self._items)


class SimulatedSignal:
    """From one thread of a process to those that wait."""

    def __init__(self, process: LoopProcess) -> None:
        self._process = process
        self._waiting: list[Pending] = []

    def give(self) -> None:
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            pending.give()

    async def wait(self, seconds: float) -> None:
        pending = Pending()
        self._waiting.append(pending)
        loop = self._process.loop
        loop.at(loop.now + seconds, self._process, pending.give)
        await pending
