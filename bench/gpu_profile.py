"""Time of a step on host and device, in short: kernels, gaps between them, calls of CUDA, ops, Python.

Three recordings of a few steps each, since each of them slows down what the others look at: the device alone,
torch's ops alone, Python alone. Events are read as the profiler has them; its own tables take minutes.
"""

# The profiler's raw events are private to torch.
# pyright: reportPrivateUsage=false

import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from io import StringIO
from typing import Any, NamedTuple

Step = Callable[[], Any]
Sums = dict[str, tuple[float, float]]
"""How often something happened in a step, and its milliseconds."""

TIMED = 3
RECORDED = 2
_NOT_WORK = ("Activity Buffer", "Context Sync", "Stream Wait", "Event Sync", "Stream Sync", "ProfilerStep")


class Recording(NamedTuple):
    """Of one contestant."""

    wall: float
    """Milliseconds of a step that nobody looks at."""
    host: float
    """Milliseconds that the main thread computed in it."""
    recorded: float
    """Milliseconds of a step while the device is recorded."""
    union: float
    """Milliseconds of it in which the device did something."""
    kernels: Sums
    calls: Sums
    ops: Sums
    gaps: list[tuple[float, str, str]]
    """The longest times in which the device did nothing, and what ran before and after."""
    python: str
    memory: str

    @property
    def work(self) -> float:
        return sum(spent for _, spent in self.kernels.values())


def record(step: Step, *, is_cuda: bool) -> Recording:
    """Of steps that are warm."""
    import torch
    from torch.profiler import ProfilerActivity

    def wait() -> None:
        if is_cuda:
            torch.cuda.synchronize()

    before = _allocations() if is_cuda else {}
    wait()
    began, computing = time.perf_counter(), time.thread_time()
    for _ in range(TIMED):
        step()
    wait()
    wall, host = (time.perf_counter() - began) / TIMED, (time.thread_time() - computing) / TIMED
    memory = _memory_text(before) if is_cuda else ""
    began = time.perf_counter()
    events = _events(step, ProfilerActivity.CUDA, RECORDED) if is_cuda else []
    recorded = (time.perf_counter() - began) / RECORDED
    on_device = [each for each in events if each[3] and not each[0].startswith(_NOT_WORK)]
    union, gaps = _union(on_device)
    return Recording(
        wall=1e3 * wall,
        host=1e3 * host,
        recorded=1e3 * recorded,
        union=1e3 * union / RECORDED,
        kernels=_sums(on_device, RECORDED),
        calls=_sums([each for each in events if not each[3]], RECORDED),
        ops=_sums(_events(step, ProfilerActivity.CPU, 1), 1),
        gaps=gaps,
        python=_python(step),
        memory=memory,
    )


def text(name: str, found: Recording, rows: int = 25) -> str:
    """Everything of one contestant."""
    lines = [
        f"== {name}: wall {found.wall:.1f} ms a step, main thread {found.host:.1f} ms; recorded "
        f"{found.recorded:.1f}: device busy {found.union:.1f}, kernels {found.work:.1f} ms, "
        f"{sum(count for count, _ in found.kernels.values()):.0f} of them; {found.memory}",
        "-- kernels",
        *_rows(found.kernels, rows),
        "-- calls of CUDA",
        *_rows(found.calls, 14),
        "-- waits and copies",
        *_rows({name: each for name, each in found.ops.items() if _is_told(name)}, rows),
        "-- gaps of the device, ms",
        *(
            f"{1e3 * long:8.2f}  after {_short(before, 50)}, before {_short(after, 50)}"
            for long, before, after in found.gaps
        ),
        "-- Python",
        found.python,
    ]
    return "\n".join(lines)


def difference(name: str, found: Recording, plain: Recording, rows: int = 25) -> str:
    """A contestant's activity beyond that of the plain loop, and short of it."""
    lines = [
        f"== {name} - plain loop: {found.wall - plain.wall:+.1f} ms a step, "
        f"kernels {found.work - plain.work:+.1f}"
    ]
    kernels, ops = _apart(found.kernels, plain.kernels), _apart(found.ops, plain.ops)
    # Times of single ops are mostly those of the recording.
    by_count = sorted(ops.items(), key=lambda each: -abs(each[1][0]))
    told = [(each, row) for each, row in by_count if row[0] and "evaluate_function" not in each][:rows]
    lines += [
        "-- kernels",
        *_rows(kernels, rows),
        "-- ops of the host",
        *(f"{times:+8.0f} x  {spent:+8.2f} ms  {_short(each)}" for each, (times, spent) in told),
    ]
    return "\n".join(lines)


def _apart(own: Sums, others: Sums) -> Sums:
    found: Sums = {}
    for name in own.keys() | others.keys():
        (times, spent), (other_times, other_spent) = own.get(name, (0, 0)), others.get(name, (0, 0))
        found[name] = times - other_times, spent - other_spent
    return found


def _is_told(name: str) -> bool:
    told = (
        "item",
        "_local_scalar_dense",
        "copy_",
        "_to_copy",
        "clone",
        "add_",
        "zero_",
        "fill_",
        "contiguous",
    )
    return name.startswith("aten::") and name.removeprefix("aten::") in told


Event = tuple[str, int, int, bool]
"""Name, begin and end in nanoseconds, and whether it is of a device."""


def _events(step: Step, activity: Any, count: int) -> list[Event]:
    import torch
    from torch.profiler import profile

    with profile(activities=[activity]) as found:
        for _ in range(count):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    results: Any = found.profiler
    host = torch.autograd.DeviceType.CPU  # pyright: ignore
    return [
        (each.name(), each.start_ns(), each.start_ns() + each.duration_ns(), each.device_type() != host)
        for each in results.kineto_results.events()
    ]


def _sums(events: Iterable[Event], steps: int) -> Sums:
    counts: dict[str, int] = defaultdict(int)
    spent: dict[str, int] = defaultdict(int)
    for name, began, ended, _ in events:
        counts[name] += 1
        spent[name] += ended - began
    return {name: (counts[name] / steps, 1e-6 * spent[name] / steps) for name in counts}


def _union(events: list[Event]) -> tuple[float, list[tuple[float, str, str]]]:
    """Seconds in which one of them runs, and the longest times between."""
    ordered = sorted(events, key=lambda each: each[1])
    busy, end, last = 0, 0, ""
    gaps: list[tuple[float, str, str]] = []
    for name, began, ended, _ in ordered:
        if last and began > end:
            gaps.append((1e-9 * (began - end), last, name))
        busy += max(0, ended - max(began, end))
        if ended > end:
            end, last = ended, name
    return 1e-9 * busy, sorted(gaps, reverse=True)[:10]


def _rows(sums: Sums, count: int) -> list[str]:
    ordered = sorted(sums.items(), key=lambda each: -abs(each[1][1]))[:count]
    return [
        f"{spent:9.2f} ms {times:8.0f} x  {_short(name)}"
        for name, (times, spent) in ordered
        if times or spent
    ]


def _short(name: str, length: int = 110) -> str:
    for word in ("void ", "at::native::", "<unnamed>::", "(anonymous namespace)::", "std::array"):
        name = name.replace(word, "")
    return name if len(name) <= length else f"{name[: length - 20]}..{name[-18:]}"


def _python(step: Step) -> str:
    found = cProfile.Profile()
    found.runcall(step)
    out = StringIO()
    stats = pstats.Stats(found, stream=out).strip_dirs()
    stats.sort_stats("tottime").print_stats(22)
    return "\n".join(line[:120] for line in out.getvalue().splitlines() if line.strip())


def _allocations() -> dict[str, Any]:
    import torch

    return torch.cuda.memory_stats()


def _memory_text(before: dict[str, Any]) -> str:
    import torch

    now = torch.cuda.memory_stats()
    parts = [f"reserved {now['reserved_bytes.all.current'] / 2**30:.1f} GiB"]
    for key in ("num_alloc_retries", "num_device_alloc", "num_device_free", "num_sync_all_streams"):
        if key in now:
            parts.append(f"{key} +{now[key] - before.get(key, 0)}")
    return ", ".join(parts)
