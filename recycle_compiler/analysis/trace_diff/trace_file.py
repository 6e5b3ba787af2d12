"""Reads what a run has left: a Chrome trace, one event for each op. Nothing is believed unchecked."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from recycle_compiler.ir.failure import FailureSet, Worker, failure_set
from recycle_runtime.files import TooLargeError, read_bounded
from recycle_runtime.plan.chrome_trace import DATA, WAIT

LARGEST_FILE = 1 << 30
_LONGEST = 1e15
"""Microseconds, some thirty years: no time of a run is larger."""
_LARGEST_STEP = 1 << 53
_WORKER = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)
_OP = re.compile(r"[FBIW]\d{1,9}\.\d{1,9}|[ROG]", re.ASCII)
_BEGIN, _END, _WHOLE = "B", "E", "X"
"""Phases of events that take time."""
_SHOWN = 40
"""Characters of a name that a message repeats."""


class TraceError(Exception):
    """Mistake in a trace, in one sentence that does not name the file."""


class Ran(NamedTuple):
    """An op as it ran; times in microseconds."""

    name: str
    step: int
    worker: Worker
    start: float
    """Start of the op's work, after all that the op has waited for."""
    end: float
    waited: float
    """Before it began."""


class TracedGeneration(NamedTuple):
    """One group of workers with one plan."""

    first: int
    """Step; it lasts to the next one's, and what both have run is the next one's."""
    plan: str
    """Failures on each stage, `0 1`, or under another cut its layout, `6x3,2x2`."""
    roles: dict[Worker, Worker]
    """From workers to those of the plan whose streams they have run."""


@dataclass(frozen=True, slots=True)
class RunTrace:
    """All ops of a run, in the order of the file."""

    ops: tuple[Ran, ...]
    failed: FailureSet | None
    """The workers that did not take part; None if the trace does not say."""
    data: Mapping[tuple[Worker, int], float] = field(default_factory=dict[tuple[Worker, int], float])
    """Microseconds that workers waited for data in each step; workers that did not wait have no entry."""
    generations: tuple[TracedGeneration, ...] = ()
    """Empty if the trace does not say."""

    def of(self, generation: int) -> "RunTrace":
        """Trace of one generation, with the workers named as those of its plan."""
        first, _, roles = self.generations[generation]
        ends = [later.first for later in self.generations[generation + 1 :]]
        end = min(ends, default=_LARGEST_STEP)
        ops = (op for op in self.ops if first <= op.step < end and op.worker in roles)
        data = {
            (roles[worker], step): waited
            for (worker, step), waited in self.data.items()
            if first <= step < end and worker in roles
        }
        return RunTrace(tuple(op._replace(worker=roles[op.worker]) for op in ops), None, data)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Those that have a track, sorted."""
        return tuple(sorted({op.worker for op in self.ops}))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({op.step for op in self.ops}))


def begins_like_a_trace(beginning: bytes) -> bool:
    """True if a file is JSON, by its first bytes; plans begin otherwise."""
    return beginning.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"[")


def read_json(path: str) -> Any:
    """Content of a file of JSON; TraceError when it is none, OSError when it cannot be read."""
    try:
        return _json(read_bounded(path, LARGEST_FILE))
    except TooLargeError:
        raise TraceError(f"too large: allowed are {LARGEST_FILE} bytes") from None


def read_run_trace(path: str) -> RunTrace:
    """The trace in a file; TraceError when it is none, OSError when it cannot be read."""
    return trace_in(read_json(path))


def parse_run_trace(content: bytes) -> RunTrace:
    """The trace in these bytes."""
    return trace_in(_json(content))


def trace_in(whole: Any) -> RunTrace:
    """The trace that JSON describes."""
    events: Any = _member(whole, "traceEvents") if isinstance(whole, dict) else whole
    if not isinstance(events, list):
        raise TraceError("not a Chrome trace: it has no list of traceEvents")
    data: dict[tuple[Worker, int], float] = {}
    ops = tuple(_ops(cast("list[Any]", events), data))
    if not ops:
        raise TraceError("the trace holds no op; `recycle-run local --trace` writes one that does")
    return RunTrace(ops, _failed(whole), data, tuple(_generations(whole)))


def _json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"), parse_constant=_no_number)
    except json.JSONDecodeError as error:
        text = error.doc.rstrip()
        what = "truncated" if error.pos >= len(text) - 1 or text[-1:] not in ("}", "]") else "not JSON"
        raise TraceError(f"{what}: line {error.lineno}, column {error.colno}: {error.msg.lower()}") from None
    except UnicodeDecodeError:
        raise TraceError("not JSON: it is not UTF-8") from None
    except ValueError:
        raise TraceError("not JSON: it holds a number that cannot have been measured") from None
    except RecursionError:
        raise TraceError("not a Chrome trace: it is nested too deeply") from None


def _member(whole: Any, name: str) -> Any:
    """Of an object; None if it is none, or has no such member."""
    return cast("dict[str, Any]", whole).get(name) if isinstance(whole, dict) else None


def _no_number(word: str) -> float:
    raise ValueError(word)


def _ops(events: list[Any], data: dict[tuple[Worker, int], float]) -> Iterable[Ran]:
    """The ops; waits for data are added up in `data`."""
    waited: dict[tuple[Worker, int], float] = {}
    for number, event in enumerate(events):
        if not isinstance(event, dict):
            raise TraceError(f"event {number} is not an object")
        row = cast("dict[str, Any]", event)
        if row.get("ph") not in (_BEGIN, _END, _WHOLE):
            # Names of tracks, counters and the like.
            continue
        name, category = row.get("name"), row.get("cat")
        is_wait = category in (WAIT, DATA)
        if row["ph"] != _WHOLE or not (is_wait or (isinstance(name, str) and _OP.fullmatch(name))):
            raise TraceError(
                f"event {number} is no op of a plan: {_shown(name)}; they are like F0.3, R, O and G"
            )
        worker, step = _place(row, number)
        start, length = _time(row, "ts", number), _time(row, "dur", number)
        if is_wait:
            kind = data if category == DATA else waited
            kind[worker, step] = kind.get((worker, step), 0.0) + length
        else:
            yield Ran(str(name), step, worker, start, start + length, waited.pop((worker, step), 0.0))


def _place(row: dict[str, Any], number: int) -> tuple[Worker, int]:
    args = row.get("args")
    step, worker = _member(args, "step"), _worker(_member(args, "worker"))
    if worker is None:
        raise TraceError(f"event {number} ({_shown(row.get('name'))}) does not say which worker ran it")
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step < _LARGEST_STEP:
        raise TraceError(f"event {number} ({_shown(row.get('name'))}) does not say which step it belongs to")
    return worker, step


def _worker(word: Any) -> Worker | None:
    named = _WORKER.fullmatch(word) if isinstance(word, str) else None
    return None if named is None else Worker(int(named[1]), int(named[2]))


def _time(row: dict[str, Any], field: str, number: int) -> float:
    value: Any = row.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TraceError(f"event {number} ({_shown(row.get('name'))}) has no number as its {field}")
    if not 0 <= value <= _LONGEST:
        found = "a negative number" if value < 0 else "more than any run takes"
        raise TraceError(f"event {number} ({_shown(row.get('name'))}) has {found} as its {field}")
    return float(value)


def _failed(whole: Any) -> FailureSet | None:
    words = _member(_member(whole, "otherData"), "failed")
    if words is None:
        return None
    workers = [_worker(word) for word in cast("list[Any]", words)] if isinstance(words, list) else [None]
    known = [worker for worker in workers if worker is not None]
    if len(known) < len(workers):
        raise TraceError('its list of failed workers is not like ["0:2", "1:3"]')
    return failure_set(known)


def _generations(whole: Any) -> Iterable[TracedGeneration]:
    rows = _member(_member(whole, "otherData"), "generations")
    for row in cast("list[Any]", rows) if isinstance(rows, list) else []:
        first, plan, named = (_member(row, name) for name in ("step", "plan", "roles"))
        words: dict[str, Any] = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
        roles = [(_worker(worker), _worker(role)) for worker, role in words.items()]
        known = {worker: role for worker, role in roles if worker is not None and role is not None}
        if type(first) is not int or not isinstance(plan, str) or len(known) < max(1, len(roles)):
            raise TraceError("it does not say which plan its generations have run, and who did")
        yield TracedGeneration(first, plan, known)


def _shown(name: Any) -> str:
    text = json.dumps(name)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
