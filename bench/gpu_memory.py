"""Memory of a worker with whole and with sharded optimizer state, beside torch's methods; on six devices.

    python -m bench.gpu_memory compile DIR    the plans; needs no GPU, and nothing else needs recyclec
    python -m bench.gpu_memory run DIR        trains with every plan and method; writes DIR/memory.json
    python -m bench.gpu_memory report DIR     tables of what was found; needs no GPU

    part      devices            what
    2, 4, 6   as many            1 stage x d pipelines, 307 M parameters: bytes a parameter between two steps
    large     6                  1.1 G parameters: whole state does not fit, state in shards does
    steps     6                  2 stages x 3 pipelines: step time beside torch.distributed.pipelining; ours
                                 in the same processes, without coordinator and agents
    settings  2                  CUDA graphs, undo on the host (if asked for)

Ours has bf16 weights, and two owners for each shard. The goal for staggered plans is 6 + 56/d bytes a
parameter: weights 2, gradients 4, state 24/d, undo 24/d, and 8/d of gradients that are kept until the norm is
known; without stagger 6 + 24/d. The devices are MIG devices of one H200 (as root) unless CUDA_VISIBLE_DEVICES
names six. `--device cpu` trains a tiny model over gloo, and has no totals.
"""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench import nccl_grid
from bench.gpu_memory_ranks import Row, Task, Timing, most_held, serve
from bench.nccl_grid import ProcessError, answers, devices, markdown, processes

ROOT = Path(__file__).resolve().parents[1]
LLAMA = ROOT / "bench" / "programs" / "llama.py"
PEERS = (2, 4, 6)
PARTS = ("2", "4", "6", "large", "steps")
FURTHER_PARTS = ("settings",)
OWNERS = 2
MICROBATCHES = 2
"""Of a pipeline with one stage."""
TIMING = Timing(steps=5, left_out=2, round=1)
LARGE_TIMING = Timing(steps=4, left_out=2, round=1)
START_SECONDS, TASK_SECONDS = {"cuda": 60.0, "cpu": 300.0}, {"cuda": 150.0, "cpu": 300.0}
"""The longest that processes may take to start, and for a task."""
CLIP_NORM = 1000.0
"""The norm is computed in every step, and not reached: a clipped step is another test."""
LARGEST_DIFFERENCE = 1e-3
"""Of losses, as a share of them, in bf16."""
MIB, GIB = 1 << 20, 1 << 30

_SMALL = {"BLOCKS": 10, "WIDTH": 1536, "HEADS": 12, "GROUPS": 4, "WIDE": 4224, "TOKENS": 16_000}
_TINY = {"BLOCKS": 3, "WIDTH": 64, "HEADS": 4, "GROUPS": 2, "WIDE": 192, "TOKENS": 128}
SIZES = {
    "cuda": {
        "llama": {**_SMALL, "SEQUENCE": 1024, "MICROBATCH": 1},
        "large": {**_SMALL, "BLOCKS": 40, "SEQUENCE": 512, "MICROBATCH": 1},
    },
    "cpu": {
        "llama": {**_TINY, "SEQUENCE": 32, "MICROBATCH": 1},
        "large": {**_TINY, "BLOCKS": 6, "SEQUENCE": 32, "MICROBATCH": 1},
    },
}
"""Names of bench/programs/llama.py."""

JOB = """job memory {{
  parallel {{ pipeline = {stages}  data = {pipelines} }}
  batch    {{ microbatches = {microbatches} }}
  {profile}
  optimizer  {{ {state} }}
  techniques {{ {techniques} }}
  tolerate   {{ failures = 0 }}
}}
"""
PROFILE = """profile  { unit = ms  forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }
  memory   { capacity = 2 }"""
GRID_PROFILE = """profile  {
    unit = us
    forward = 14000  backward_input = 14000  backward_weight = 13000
    optimizer = 3000  reduce = 60000  transfer = 10000  activation = 1
  }
  memory   { capacity = 4 }"""
"""About what `bench.nccl_grid` has measured."""
STATES = {"whole": "state = whole", "sharded": f"state = sharded  owners = {OWNERS}"}
TECHNIQUES = {"1F1B": "", "decoupled + staggered": "decouple  stagger"}
GRID_TECHNIQUES = {"1F1B": "", "zero-bubble": "adaptive  decouple  stagger"}


class Plan(NamedTuple):
    """One to compile and run."""

    stages: int
    pipelines: int
    state: str
    schedule: str

    @property
    def name(self) -> str:
        return f"{self.schedule}, {self.state} state"

    @property
    def file(self) -> str:
        words = self.schedule.replace(" + ", "-")
        return f"{self.stages}x{self.pipelines}-{words}-{self.state}.plan"

    @property
    def job(self) -> str:
        of_grid = self.stages > 1
        return JOB.format(
            stages=self.stages,
            pipelines=self.pipelines,
            microbatches=nccl_grid.MICROBATCHES if of_grid else MICROBATCHES,
            profile=GRID_PROFILE if of_grid else PROFILE,
            state=STATES[self.state],
            techniques=(GRID_TECHNIQUES if of_grid else TECHNIQUES)[self.schedule],
        )


ALONE = [Plan(1, peers, state, name) for peers in PEERS for name in TECHNIQUES for state in STATES]
GRID = [
    Plan(nccl_grid.STAGES, nccl_grid.PIPELINES, state, name) for name in GRID_TECHNIQUES for state in STATES
]


def compile_plans(folder: Path) -> None:
    recyclec = str(Path(sys.executable).parent / "recyclec")
    for plan in (*ALONE, *GRID):
        path = folder / plan.file
        job = path.with_suffix(".job")
        job.write_text(plan.job)
        subprocess.run([recyclec, "--quiet", "compile", str(job), "-o", str(path)], check=True)
        print(path, flush=True)


def program_text(sizes: Mapping[str, int], device: str) -> str:
    """The Llama-like program at this size, built on the device: to build it on the host takes longer than to
    train it."""
    return f'''"""{LLAMA.name} with {", ".join(f"{name} {value}" for name, value in sizes.items())}."""

import torch

_LLAMA = {{"__name__": "llama"}}
exec(compile(open({str(LLAMA)!r}, encoding="utf-8").read(), {str(LLAMA)!r}, "exec"), _LLAMA)
_LLAMA.update({dict(sizes)!r})
PRECISION = "bf16-weights"
CLIP_NORM = {CLIP_NORM}
loss, batches, optimizer = _LLAMA["loss"], _LLAMA["batches"], _LLAMA["optimizer"]


def layers():
    with torch.device({device!r}):
        return _LLAMA["layers"]()
'''


# The run.


def tasks_of(part: str, folder: Path, device: str) -> list[Task]:
    """Tasks of a part of the benchmark; programs are in the folder."""
    llama, large = (str(folder / f"{name}.py") for name in ("llama", "large"))
    if part in map(str, PEERS):
        peers = int(part)
        plans = [plan for plan in ALONE if plan.pipelines == peers]
        found = [_of_plan(plan, folder, llama, TIMING) for plan in plans]
        torchs = Task("", peers, llama, "ddp", TIMING, microbatches=MICROBATCHES)
        found += [
            torchs._replace(name="DDP"),
            torchs._replace(name="DDP + ZeroRedundancyOptimizer", shares_out=True),
            torchs._replace(name="FSDP2", method="fsdp"),
        ]
        return found
    if part == "large":
        plans = [plan for plan in ALONE if plan.pipelines == max(PEERS) and plan.schedule == "1F1B"]
        return [_of_plan(plan, folder, large, LARGE_TIMING) for plan in plans]
    if part == "settings":
        plan = Plan(1, min(PEERS), "whole", "decoupled + staggered")
        task = _of_plan(plan, folder, llama, TIMING)
        return [
            task._replace(name=f"{task.name}, undo on the host", undo="host"),
            task._replace(name=f"{task.name}, CUDA graphs", graphs="on" if device == "cuda" else "off"),
        ]
    return _grid_tasks(folder, device)


def _of_plan(plan: Plan, folder: Path, program: str, timing: Timing) -> Task:
    workers = plan.stages * plan.pipelines
    return Task(plan.name, workers, program, "ours", timing, str(folder / plan.file))


def _grid_tasks(folder: Path, device: str) -> list[Task]:
    program, steps = str(folder / "grid.py"), nccl_grid.SIZES[device].steps
    timing = Timing(steps, nccl_grid.LEFT_OUT, nccl_grid.ROUND)
    found = [_of_plan(plan, folder, program, timing)._replace(graphs="auto") for plan in GRID]
    for schedule in nccl_grid.SCHEDULES[:2]:
        task = Task(schedule.name, nccl_grid.WORKERS, program, "pipelining", timing, schedule=schedule)
        found += [
            task._replace(name=f"{schedule.name}, whole state"),
            task._replace(name=f"{schedule.name}, ZeroRedundancyOptimizer", shares_out=True),
        ]
    return found


class Pool:
    """Processes with a device each, started when there is something to do and again when one has failed.

    Ours and torch's are not the same: ours sets what CUDA and NCCL read from the environment.
    """

    def __init__(self, names: Sequence[str], device: str, count: int) -> None:
        self._names, self._device, self._size = names, device, count
        self._running = ExitStack()
        self._pipes: list[Connection] = []
        self._is_ours = False
        self._count = 0

    def do(self, task: Task) -> list[Row]:
        """Findings of each of its processes; ProcessError if one fails or is silent, and all are ended."""
        if not self._pipes or is_ours(task) != self._is_ours:
            self._start(is_ours(task))
        self._count += 1
        pipes = self._pipes[: task.processes]
        try:
            for pipe in pipes:
                pipe.send((self._count, task))
            return answers(pipes, TASK_SECONDS[self._device])
        except (ProcessError, OSError) as error:
            self.end()
            raise ProcessError(str(error)) from error

    def _start(self, is_ours: bool) -> None:
        self.end()
        self._is_ours = is_ours
        started = processes(serve, self._names, self._device, is_ours, count=self._size)
        self._pipes = self._running.enter_context(started)
        try:
            answers(self._pipes, START_SECONDS[self._device])
        except ProcessError as error:
            raise SystemExit(f"processes do not start: {error}") from error

    def end(self) -> None:
        self._pipes = []
        self._running.close()


def is_ours(task: Task) -> bool:
    return task.method in ("ours", "planned")


@contextmanager
def _pool(device: str, count: int) -> Generator[Pool]:
    with devices(device) as names:
        pool = Pool(names, device, count)
        try:
            yield pool
        finally:
            pool.end()


def run(folder: Path, device: str, parts: Sequence[str] = PARTS) -> None:
    """Every part; what is found is written at once, and stays as it was for parts that are not asked for."""
    path = folder / "memory.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name, sizes in SIZES[device].items():
        (folder / f"{name}.py").write_text(program_text(sizes, device))
    (folder / "grid.py").write_text(nccl_grid.program_text(nccl_grid.SIZES[device].sizes))
    tasks = [(part, task) for part in parts for task in tasks_of(part, folder, device)]
    if any(part in map(str, PEERS) for part in parts):
        llama = str(folder / "llama.py")
        tasks.insert(0, ("profile", Task("llama", 1, llama, "planned", TIMING)))
    tasks.sort(key=lambda each: not is_ours(each[1]))
    with _pool(device, max(task.processes for _, task in tasks)) as pool:
        for part, task in tasks:
            began = time.monotonic()
            row: Row
            try:
                row = together(pool.do(task))
            except ProcessError as error:
                row = {"error": sentence(str(error))}
            row["seconds"] = time.monotonic() - began
            found.setdefault(part, {})[task.name] = row
            path.write_text(json.dumps(found, indent=1))
            print(f"{part}: {task.name}: {_words(row)}", flush=True)
    print(markdown(plan_rows(found, folder)), flush=True)


def together(rows: Sequence[Row]) -> Row:
    """Of all processes of a task: the most memory, the slowest of each round, the sum of their losses."""
    found: Row = {}
    for name in rows[0]:
        values = [row[name] for row in rows if name in row]
        if name == "rounds":
            found[name] = [max(times) for times in zip(*values, strict=True)]
        elif name == "losses":
            told = [each for each in values if each]
            found[name] = [sum(parts) for parts in zip(*told, strict=True)]
        else:
            found[name] = max(values)
    return found


def sentence(error: str) -> str:
    """The beginning of what a process has said."""
    return error.partition("\n")[0].partition(" See documentation")[0][:300]


def _words(row: Row) -> str:
    if "error" in row:
        return f"{row['error']} ({row['seconds']:.0f} s)"
    words = [f"{row['seconds']:.0f} s"]
    if row.get("rounds"):
        words.append(f"{median(row['rounds']):.1f} ms a step")
    if "weights" in row:
        words.append(f"{per_parameter(row, *HELD):.2f} bytes a parameter known")
    if "allocated" in row:
        words.append(
            f"{per_parameter(row, 'allocated'):.2f} allocated, {row['highest'] / MIB:,.0f} MiB at most"
        )
    if "seconds to build" in row:
        words.append(f"built in {row['seconds to build']:.1f} s, agreed in {row['seconds to agree']:.1f} s")
    return ", ".join(words)


# The tables.

HELD = ("weights", "gradients", "kept", "optimizer", "undo")


def per_parameter(row: Row, *names: str) -> float:
    """Bytes of the device."""
    on_host = row.get("undo on the host", 0) if "undo" in names else 0
    return (sum(row.get(name, 0) for name in names) - on_host) / row["parameters"]


def goal(name: str, peers: int) -> float | None:
    """Bytes a parameter for a plan; None for torch's methods."""
    if not name.endswith(" state"):
        return None
    share = min(OWNERS, peers) / peers if "sharded" in name else 1
    return 6 + (28 if "staggered" in name else 12) * share


def report(folder: Path) -> None:
    found: dict[str, dict[str, Row]] = json.loads((folder / "memory.json").read_text())
    profile = found.get("profile", {}).get("llama", {})
    print(markdown(rest_rows(found)))
    print(markdown(use_rows(found, profile, folder)))
    print(markdown(plan_rows(found, folder)))
    for part, rows in (("large", large_rows), ("steps", step_rows)):
        if part in found:
            print(markdown(rows(found[part])))


def _of_peers(found: Mapping[str, dict[str, Row]]) -> Generator[tuple[int, str, Row]]:
    for part in (*map(str, PEERS), "settings"):
        peers = min(PEERS) if part == "settings" else int(part)
        for name, row in found.get(part, {}).items():
            yield peers, name, row


def rest_rows(found: Mapping[str, dict[str, Row]]) -> list[tuple[str, ...]]:
    """Bytes a parameter between two steps."""
    head = ("d", "bytes a parameter", *HELD, "other", "allocated", "goal")
    rows: list[tuple[str, ...]] = [head]
    for peers, name, row in _of_peers(found):
        if "error" in row:
            rows.append((str(peers), name, row["error"], *("",) * (len(head) - 3)))
            continue
        known = [f"{per_parameter(row, part):.2f}" if part in row else "" for part in HELD]
        if row.get("undo on the host"):
            known[-1] = f"{row['undo on the host'] / row['parameters']:.2f} on the host"
        total = other = ""
        if "allocated" in row:
            total = f"{per_parameter(row, 'allocated'):.2f}"
            other = f"{per_parameter(row, 'allocated') - per_parameter(row, *HELD):.2f}"
        aim = goal(name, peers)
        rows.append((str(peers), name, *known, other, total, "" if aim is None else f"{aim:.2f}"))
    return rows


def use_rows(found: Mapping[str, dict[str, Row]], profile: Row, folder: Path) -> list[tuple[str, ...]]:
    """MiB beyond what is held between two steps, as planned, before any instruction and at most; the most of
    all, and as a share of the goal and what is planned; of the whole device; and milliseconds of a step."""
    head = ("d", "MiB", "planned", "held", "at most", "with the rest", "of goal and planned", "first steps")
    device = ("reserved", "beside torch", "of that without NCCL")
    rows: list[tuple[str, ...]] = [(*head, *device, "ms a step", "losses differ by")]
    for peers, name, row in _of_peers(found):
        if "error" in row:
            continue
        row = {**row, "beyond": row["highest"] - row["allocated"]} if "allocated" in row else row
        counted, aim, of_both, apart = _planned(folder, peers, name, profile), goal(name, peers), "", ""
        if counted is not None and aim is not None and "highest" in row:
            of_both = f"{row['highest'] / (aim * row['parameters'] + counted):.3f}"
        expected = found.get(str(peers), {}).get(f"{next(iter(TECHNIQUES))}, whole state", {}).get("losses")
        if expected and counted is not None:
            apart = _apart(row, expected)
        beyond = [_mib(row, each) for each in ("held", "beyond", "highest")]
        used = [_mib(row, each) for each in ("start", "reserved", "driver", "context")]
        plan = _mib({"planned": counted}, "planned")
        rows.append((str(peers), name, plan, *beyond, of_both, *used, _step(row), apart))
    return rows


def plan_rows(found: Mapping[str, dict[str, Row]], folder: Path) -> list[tuple[str, ...]]:
    """GiB that a plan counts and the most that a worker has had, by torch and by all of the process: the
    context of CUDA and NCCL's buffers are measured, and counted as they are."""
    head = (
        "d",
        "plan",
        "planned GiB",
        "highest GiB",
        "ratio",
        "beside torch",
        "planned in all",
        "of a device",
    )
    rows: list[tuple[str, ...]] = [head]
    for peers, name, row in _of_peers(found):
        counted = bytes_of_plan(found, folder, peers, name)
        if counted is None or "highest" not in row:
            continue
        sizes = (counted, row["highest"])
        beside = row["driver"]
        rows.append(
            (
                str(peers),
                name,
                *(f"{size / GIB:.3f}" for size in sizes),
                f"{row['highest'] / counted:.3f}",
                f"{beside / GIB:.3f}",
                f"{(counted + beside) / GIB:.3f}",
                f"{row['device'] / GIB:.2f}",
            )
        )
    return rows


def bytes_of_plan(found: Mapping[str, dict[str, Row]], folder: Path, peers: int, name: str) -> int | None:
    """The most that a worker of a plan holds, as it is counted: for each parameter; and activations with what
    ops need beside them, or weights on their way, whichever is more."""
    profile = found.get("profile", {}).get("llama", {})
    row = found.get(str(peers), {}).get(name, {})
    activations, aim = _planned(folder, peers, name, profile), goal(name, peers)
    if activations is None or aim is None or "parameters" not in row:
        return None
    moving = max(activations + profile["working"], row.get("messages", 0))
    return round(aim * row["parameters"]) + moving


def _mib(row: Row, name: str) -> str:
    return f"{row[name] / MIB:,.0f}" if row.get(name) is not None else ""


def _planned(folder: Path, peers: int, name: str, profile: Row) -> int | None:
    """Bytes of activations that a plan counts."""
    from recycle_runtime.plan.bundle import Bundle

    plan = next((each for each in ALONE if each.pipelines == peers and name.startswith(each.name)), None)
    if plan is None or "saved" not in profile:
        return None
    stream = Bundle.read(str(folder / plan.file)).stream(0, (0, 0))
    return most_held(stream, profile["saved"], profile["kept"])


def _step(row: Row) -> str:
    rounds: list[float] = row.get("rounds", [])
    return f"{median(rounds):,.1f} ({min(rounds):,.1f} to {max(rounds):,.1f})" if rounds else ""


def large_rows(part: Mapping[str, Row]) -> list[tuple[str, ...]]:
    """A model that fits with its state in shards."""
    head = ("large model", "parameters", "MiB between steps", "at most", "reserved", "beside torch", "of")
    rows: list[tuple[str, ...]] = [(*head, "ms a step")]
    for name, row in part.items():
        if "error" in row:
            rows.append((name, row["error"], *("",) * 6))
            continue
        sizes = [_mib(row, each) for each in ("allocated", "highest", "reserved", "driver", "device")]
        rows.append((name, f"{row['parameters']:,}", *sizes, _step(row)))
    return rows


def step_rows(part: Mapping[str, Row]) -> list[tuple[str, ...]]:
    """2 stages x 3 pipelines; losses beside those of the first row."""
    rows: list[tuple[str, ...]] = [
        ("2 stages x 3 pipelines", "ms a step", "at most MiB on a device", "losses differ by")
    ]
    expected: list[float] = next((row["losses"] for row in part.values() if "losses" in row), list[float]())
    for name, row in part.items():
        if "error" in row:
            rows.append((name, row["error"], "", ""))
            continue
        rows.append((name, _step(row), _mib(row, "highest"), _apart(row, expected)))
    return rows


def _apart(row: Row, expected: Sequence[float]) -> str:
    """Distance of its losses from those expected; marked where more than the order of sums is behind it."""
    found = nccl_grid.largest_difference(row["losses"], expected)
    return f"{found:.1e}{' WRONG' if found > LARGEST_DIFFERENCE else ''}"


def main() -> None:
    works: dict[str, nccl_grid.Work] = {
        "compile": lambda folder, device, chosen: compile_plans(folder),
        "run": run,
        "report": lambda folder, device, chosen: report(folder),
    }
    nccl_grid.command_line(__doc__ or "", works, "--parts", (*PARTS, *FURTHER_PARTS), PARTS)


if __name__ == "__main__":
    main()
