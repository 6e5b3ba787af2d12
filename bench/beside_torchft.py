"""torchft and recyclec train the same model on the same six devices while workers are killed.

    python -m bench.beside_torchft compile DIR     the bundle for recyclec; needs no GPU
    python -m bench.beside_torchft run DIR         trains with both: DIR/torchft.json, DIR/recyclec.json
    python -m bench.beside_torchft report DIR      the table in Markdown; needs no GPU

    torchft     6 replicas of the whole model, 3 micro-batches each: DistributedDataParallel, a lighthouse
    recyclec    2 stages x 3 pipelines, 6 micro-batches for each pipeline

Both make steps of the same 18 micro-batches, from the same weights, with the same optimizer and clipping.
Every few seconds SIGKILL hits one worker process, from outside, and the worker is started again at once:
recyclec does so itself, replicas of torchft are started again by this benchmark. `run` needs torch and
torchft 0.2.0. It takes six of the seven MIG devices of an H200, unless CUDA_VISIBLE_DEVICES names six. With
--device cpu a tiny model is trained, to try the benchmark itself.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from bench.beside_torchft_figures import (
    LEFT_OUT,
    RECYCLEC,
    TORCHFT,
    WORKERS,
    DeviceMemory,
    Kill,
    Record,
    Step,
    report,
)
from bench.mig import mig_devices
from bench.torchft_replica import PER_STEP, REPLICAS, ReplicaRow
from recycle_runtime import logs
from recycle_runtime.agent.process_table import PROCESSES, ProcessTable
from recycle_runtime.launcher.live_view import event_of
from recycle_runtime.launcher.local import RunError, RunOptions, run_local
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.plan_choice import NoFittingPlanError
from recycle_runtime.protocol.messages.observers import ToObserver
from recycle_runtime.protocol.messages.steps import StepRow

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "bench" / "programs" / "small_llama.py"
STAGES, PIPELINES, MICROBATCHES = 2, 3, 6
assert STAGES * PIPELINES == WORKERS == REPLICAS
assert PIPELINES * MICROBATCHES == PER_STEP
VICTIMS = (2, 5, 1, 4, 0, 3)
"""Workers in the order in which they are killed. Two in a row are of different stages and pipelines."""

JOB = f"""job beside_torchft {{{{
  parallel {{{{ pipeline = {STAGES}  data = {PIPELINES}  tensor = 1 }}}}
  batch    {{{{ microbatches = {MICROBATCHES} }}}}
  {{profile}}
  techniques {{{{ adaptive  decouple  stagger }}}}
  tolerate   {{{{ failures = 4 }}}}
}}}}
"""
ESTIMATE = """profile  {
    unit = us
    forward = [2000, 2400]  backward_input = [2400, 2800]  backward_weight = [1600, 2000]
    optimizer = 1500  reduce = 40000  transfer = 2500  activation = 1
  }
  memory     { capacity = 6 }"""
"""For a MIG device of 16 multiprocessors, and NCCL over sockets, which all-reduces 64 MiB in 55 ms."""

START_UP = {"cuda": 25.0, "cpu": 120.0}
"""Seconds until the first step at most; a contestant that takes longer has less time for steps."""
SAVED_EVERY, MEMORY_EVERY = 5.0, 3.0
"""Seconds from one writing of a record to the next, and from one nvidia-smi to the next."""
LAST_STEP = 1_000_000

WATCHED_PROGRAM = """
__file__ = {program!r}
exec(compile(open(__file__, encoding="utf-8").read(), __file__, "exec"))


def _watch_memory():
    import json, os, threading, time, torch

    def watch():
        path = os.path.join({folder!r}, f"memory-{{os.getpid()}}.json")
        while True:
            time.sleep(1)
            with open(path + ".new", "w") as file:
                json.dump((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()), file)
            os.replace(path + ".new", path)

    threading.Thread(target=watch, daemon=True).start()


_watch_memory()
"""
"""The program, and a thread that writes down the most memory that torch has had in this process."""


def compile_bundle(folder: Path, profile: Path | None) -> None:
    """From the times of a profile, or from estimates; how long that takes is part of the comparison."""
    job, plan = folder / "beside.job", folder / "beside.plan"
    said = ESTIMATE if profile is None else f'profile from "{profile.resolve()}"'
    job.write_text(JOB.format(profile=said), encoding="utf-8")
    recyclec = str(Path(sys.executable).parent / "recyclec")
    began = time.monotonic()
    subprocess.run([recyclec, "--quiet", "compile", str(job), "-o", str(plan)], check=True)
    seconds = time.monotonic() - began
    (folder / "compile.json").write_text(json.dumps({"seconds": seconds}), encoding="utf-8")


_STEPS_BEFORE = 3 * LEFT_OUT
"""One kill alone: steps before it."""
_STEPS_OF_ALL = 3
"""And after it, with all workers, until the killed one counts as back."""


class Timetable:
    """Time of one contestant, from its first step on, and the kills in it."""

    def __init__(self, seconds: float, every: float, start_up: float, *, is_one_kill: bool = False) -> None:
        """With one kill, it comes after some steps, and the time is over once its worker is back, after so
        many seconds at the latest."""
        self.started = time.monotonic()
        self._is_one_kill, self._is_back, self._made = is_one_kill, False, 0
        self._latest = self.started + start_up
        self.first_step: float | None = None
        self.kills: list[Kill] = []
        self._seconds, self.every = seconds, every
        self._order = itertools.cycle(VICTIMS)

    def saw(self, steps: Sequence[Step]) -> None:
        """These have been made so far."""
        self._made = len(steps)
        if self._is_one_kill and self.kills:
            workers = [step.workers for step in steps if step.at > self.kills[0].at]
            fewer = next((number for number, count in enumerate(workers) if count < WORKERS), len(workers))
            self._is_back = workers[fewer:].count(WORKERS) >= _STEPS_OF_ALL

    def is_over(self, now: float) -> bool:
        return self._is_back or now > min(self._latest, self.first_step or self._latest) + self._seconds

    def look(self, now: float, pids: Callable[[], Mapping[int, int]]) -> Kill | None:
        """Kill a worker if it is time. Every kill leaves time to see the worker return."""
        if self.first_step is None:
            return None
        due = self.first_step + self.every * (len(self.kills) + 1)
        if self._is_one_kill:
            if self.kills or self._made < _STEPS_BEFORE:
                return None
        elif now < due or due > self.first_step + self._seconds - self.every:
            return None
        running = pids()
        victim = next((each for each in itertools.islice(self._order, WORKERS) if each in running), None)
        if victim is None:
            return None
        kill = Kill(time.monotonic(), victim)
        self.kills.append(kill)
        with suppress(ProcessLookupError):
            os.kill(running[victim], signal.SIGKILL)
        return kill

    def say(self, words: str) -> None:
        print(f"  {time.monotonic() - self.started:6.2f} s  {words}", flush=True)


class MemoryWatch:
    """Memory of the devices while a contestant trains."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._used = folder, 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if device == "cuda":
            self._thread.start()

    def largest(self) -> DeviceMemory:
        allocated = reserved = 0
        for path in self._folder.glob("memory-*.json"):
            found: list[int] = json.loads(path.read_text(encoding="utf-8"))
            allocated, reserved = max(allocated, found[0]), max(reserved, found[1])
        return DeviceMemory(allocated, reserved, self._used)

    def close(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(MEMORY_EVERY):
            with suppress(subprocess.SubprocessError, OSError, ElementTree.ParseError):
                shown = subprocess.run(["nvidia-smi", "-q", "-x"], check=True, capture_output=True, text=True)
                self._used = max(self._used, *used_on_mig_devices(shown.stdout), 0)


def used_on_mig_devices(xml: str) -> list[int]:
    """Bytes in use on each MIG device, of `nvidia-smi -q -x`."""
    devices = ElementTree.fromstring(xml).iter("mig_device")
    amounts = [device.findtext("fb_memory_usage/used", "") for device in devices]
    return [int(amount.removesuffix(" MiB")) << 20 for amount in amounts if amount.endswith(" MiB")]


class Contestant:
    """Common parts of both: a folder of its own, the watched program, time, and a record."""

    def __init__(self, name: str, said: argparse.Namespace) -> None:
        self._name, self._folder = name, said.folder
        self.device: str = said.device
        self.ending = ExitStack()
        """Ends whatever was started, in the other order."""
        temporary = tempfile.TemporaryDirectory(prefix="beside-", ignore_cleanup_errors=True)
        self.here = Path(self.ending.enter_context(temporary))
        self.program = self.here / "program.py"
        text = WATCHED_PROGRAM.format(program=str(PROGRAM), folder=str(self.here))
        self.program.write_text(text, encoding="utf-8")
        self._memory = MemoryWatch(self.here, self.device)
        self.ending.callback(self._memory.close)
        self.timetable = Timetable(said.seconds, said.every, START_UP[self.device], is_one_kill=said.one_kill)
        self._saved = 0.0

    def save(self, steps: Sequence[Step], ended: int | None = None, error: str | None = None) -> Record:
        """Write the record as it is now."""
        self.timetable.saw(steps)
        kills, memory = tuple(self.timetable.kills), self._memory.largest()
        record = Record(self._name, self.timetable.started, tuple(steps), kills, ended, memory, error)
        record.save(self._folder)
        self._saved = time.monotonic()
        return record

    def is_to_save(self, now: float) -> bool:
        return now > self._saved + SAVED_EVERY


def run_recyclec(contestant: Contestant, plan: Path) -> Record:
    """A local job, which starts failed workers again by itself."""
    timetable, steps = contestant.timetable, list[Step]()
    table = ProcessTable(contestant.here / "state" / "node" / PROCESSES, WORKERS)

    def pids() -> dict[int, int]:
        return {row.member.worker[0] * STAGES + row.member.worker[1]: row.pid for row in table.written()}

    def take(message: ToObserver) -> None:
        now = time.monotonic()
        if isinstance(message, StepRow):
            timetable.first_step = timetable.first_step or now
            steps.append(Step(now, message.step, message.loss, message.samples, message.live))
            if contestant.is_to_save(now):
                contestant.save(steps)
        elif (words := event_of(message)) is not None:
            timetable.say(words)

    def stop() -> str | None:
        now = time.monotonic()
        timetable.look(now, pids)
        return "its time is up" if timetable.is_over(now) else None

    options = RunOptions(
        str(plan),
        str(contestant.program),
        LAST_STEP,
        device=contestant.device,
        restarts_workers=True,
        state=str(contestant.here / "state"),
        stop_timeout=5.0,
        adaptation=AdaptationOptions(mtbf=timetable.every),
    )
    error = None
    logs.configure("info", str(plan.with_name("recyclec.log")))
    try:
        run_local(options, take, stop)
    except (RunError, NoFittingPlanError) as found:
        # A job without checkpoints that is asked to end says so in an error.
        error = None if timetable.is_over(time.monotonic()) else str(found)
    return contestant.save(steps, error=error)


class Replicas:
    """Processes of a job of torchft: a lighthouse, and replicas that are started again when they end."""

    def __init__(self, folder: Path, devices: Sequence[str], said: argparse.Namespace) -> None:
        self._folder, self._devices, self._said = folder, devices, said
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._killed: set[int] = set()
        self._starts = 0
        self.ended_by_themselves = 0
        command = [sys.executable, "-m", "bench.torchft_replica", "lighthouse"]
        self._lighthouse = subprocess.Popen(
            [*command, "--join-timeout", str(said.join_timeout)], stdout=subprocess.PIPE, text=True
        )
        assert self._lighthouse.stdout is not None
        self._address = self._lighthouse.stdout.readline().strip()
        for number in range(WORKERS if self._address else 0):
            self._start(number)

    @property
    def has_started(self) -> bool:
        return bool(self._processes)

    def look(self, say: Callable[[str], None]) -> None:
        """Start replicas again that have ended; let all begin once every one of them is ready."""
        for number, process in list(self._processes.items()):
            if (status := process.poll()) is None:
                continue
            if process.pid not in self._killed:
                self.ended_by_themselves += 1
                say(f"replica {number} ended by itself with status {status}: {self._last_line(number)}")
            self._start(number)
        if len(list(self._folder.glob("ready-*"))) == WORKERS:
            (self._folder / "go").touch()

    def pids(self) -> dict[int, int]:
        return {number: process.pid for number, process in self._processes.items() if process.poll() is None}

    def was_killed(self, number: int) -> None:
        self._killed.add(self._processes[number].pid)

    def rows(self) -> Iterator[ReplicaRow]:
        """All that replicas have written so far; one that was killed may have left half a line."""
        for path in self._folder.glob("rows-*.jsonl"):
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, TypeError):
                    yield ReplicaRow(*json.loads(line))

    def _last_line(self, number: int) -> str:
        """Of what a replica has written to stderr."""
        log = (self._folder / f"log-{number}").read_text(encoding="utf-8", errors="replace")
        return next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "")

    def close(self) -> None:
        for process in (*self._processes.values(), self._lighthouse):
            process.kill()
            process.wait()

    def _start(self, number: int) -> None:
        self._starts += 1
        environment = dict(os.environ)
        if self._said.device == "cuda":
            environment["CUDA_VISIBLE_DEVICES"] = self._devices[number]
            # NCCL refuses two ranks on one GPU of one host.
            environment["NCCL_HOSTID"] = f"host{number}"
            environment["TORCH_NCCL_NONBLOCKING_TIMEOUT"] = f"{self._said.timeout:.0f}"
        command = [sys.executable, "-m", "bench.torchft_replica", "replica", "--folder", str(self._folder)]
        command += ["--number", str(number), "--start", str(self._starts), "--address", self._address]
        command += ["--device", self._said.device, "--timeout", str(self._said.timeout)]
        command += ["--as-released"] if self._said.as_released else []
        with (self._folder / f"log-{number}").open("wb") as log:
            self._processes[number] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def merged(rows: Iterable[ReplicaRow]) -> list[Step]:
    """Steps of the whole job. A step has the samples of its participants: none of a replica that was killed
    in it, or that is not back yet."""
    by_step: dict[int, list[ReplicaRow]] = {}
    for row in rows:
        if row.is_committed and row.is_participating:
            by_step.setdefault(row.step, []).append(row)
    return [
        Step(
            max(row.at for row in found),
            step,
            sum(row.loss for row in found) / len(found),
            found[0].participants * found[0].samples,
            found[0].participants,
        )
        for step, found in sorted(by_step.items())
    ]


def run_torchft(contestant: Contestant, replicas: Replicas) -> Record:
    """Replicas, started again here when they end."""
    timetable = contestant.timetable
    if not replicas.has_started:
        return contestant.save([], error="the lighthouse did not start: torchft must be importable")
    while not timetable.is_over(now := time.monotonic()):
        if (kill := timetable.look(now, replicas.pids)) is not None:
            replicas.was_killed(kill.worker)
            timetable.say(f"replica {kill.worker} was killed")
        replicas.look(timetable.say)
        if timetable.first_step is None or contestant.is_to_save(now):
            steps = merged(replicas.rows())
            contestant.save(steps, replicas.ended_by_themselves)
            timetable.first_step = steps[0].at if steps else None
        time.sleep(0.05)
    steps = merged(replicas.rows())
    error = None if steps else "no step was made"
    return contestant.save(steps, replicas.ended_by_themselves, error)


@contextmanager
def six_devices(device: str) -> Generator[list[str]]:
    """As CUDA_VISIBLE_DEVICES names them; there it has these six meanwhile."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    with ExitStack() as stack:
        if device == "cuda":
            named = named if len(named) >= WORKERS else stack.enter_context(mig_devices())
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(named[:WORKERS])
        yield named[:WORKERS]


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def run(said: argparse.Namespace) -> None:
    """Both contestants, one after the other. Whatever ends this ends all processes that it has started."""
    signal.signal(signal.SIGTERM, _end)
    os.environ.update(NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    if said.device == "cpu":
        os.environ["SMALL_LLAMA"] = "tiny"
    with six_devices(said.device) as devices:
        for name in said.only or (TORCHFT, RECYCLEC):
            print(name, flush=True)
            contestant = Contestant(name, said)
            with contestant.ending:
                if name == TORCHFT:
                    replicas = Replicas(contestant.here, devices, said)
                    contestant.ending.callback(replicas.close)
                    found = run_torchft(contestant, replicas)
                else:
                    found = run_recyclec(contestant, said.folder / "beside.plan")
            contestant.timetable.say(f"{len(found.steps)} steps, {found.error or 'no error'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("compile", "run", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--profile", type=Path, help="of `recycle-run profile` (default: estimated times)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each contestant (default: 60)")
    parser.add_argument("--every", type=float, default=12.0, help="seconds between kills (default: 12)")
    words = "one kill alone; a contestant ends once its worker is back"
    parser.add_argument("--one-kill", action="store_true", help=words)
    parser.add_argument("--only", choices=(TORCHFT, RECYCLEC), action="append", help="not the other one")
    words = "milliseconds that torchft's lighthouse waits for replicas to join (default: 1000)"
    parser.add_argument("--join-timeout", type=int, default=1000, help=words)
    words = "seconds for an operation of torchft, such as an all-reduce (default: 10)"
    parser.add_argument("--timeout", type=float, default=10.0, help=words)
    words = "torchft without the mended hook, in which survivors of a failed all-reduce end"
    parser.add_argument("--as-released", action="store_true", help=words)
    said = parser.parse_args()
    said.folder.mkdir(parents=True, exist_ok=True)
    if said.what == "compile":
        compile_bundle(said.folder, said.profile)
    elif said.what == "run":
        if not (said.folder / "beside.plan").exists():
            parser.error(f"{said.folder / 'beside.plan'} is missing: run `compile` first")
        run(said)
    else:
        print(report(said.folder), end="")


if __name__ == "__main__":
    main()
