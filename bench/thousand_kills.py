"""Training while a random worker is killed every few seconds, compared with an undisturbed run.

    python -m bench.thousand_kills all DIR         where a GPU and the compiler are both there
    python -m bench.thousand_kills compile DIR     the bundle; needs no GPU
    python -m bench.thousand_kills run DIR         trains on six devices, and records what happens in DIR
    python -m bench.thousand_kills report DIR      the table, and docs/thousand-kills.svg; needs no GPU

A small Llama trains on 2 stages x 3 pipelines. `run` makes undisturbed steps for a share of its time, and
then the same steps from the same seed under kills: SIGKILL from outside, at a random moment, to a worker
without which every stage still has its state. The job starts workers again by itself. It waits longer with
every death of a worker, so there are several runs under kills; each goes on from the last checkpoint of the
one before it. Losses are compared for all steps that both series have made. With --checkpoint FOLDER a second
`run` into the same DIR extends both series.

Six of the seven MIG devices of an H200 are used, unless CUDA_VISIBLE_DEVICES names six devices. --device cpu
trains a tiny model, to try the benchmark itself.
"""

import argparse
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from bench.kill_picture import kill_picture
from bench.kill_records import RecordFile, markdown, read_runs, report_rows
from bench.mig import mig_devices
from recycle_runtime import logs
from recycle_runtime.agent.process_signs import exit_of
from recycle_runtime.agent.process_table import PROCESSES, ProcessTable
from recycle_runtime.checkpoint.checkpoint_folder import CheckpointFolder
from recycle_runtime.launcher.live_view import event_of
from recycle_runtime.launcher.local import RunError, RunOptions, run_local
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.plan_choice import NoFittingPlanError
from recycle_runtime.protocol.messages.observers import Generation, JobEvent, Recovered, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(ROOT / "bench" / "programs" / "small_llama.py")
PICTURE = ROOT / "docs" / "thousand-kills.svg"
UNDISTURBED, DISTURBED = "undisturbed", "disturbed"
"""The two series of runs, as their files are named."""
STAGES, PIPELINES = 2, 3
WORKERS = STAGES * PIPELINES
JOB = f"""job kills {{
  parallel {{ pipeline = {STAGES}  data = {PIPELINES}  tensor = 1 }}
  batch    {{ microbatches = 6 }}
  profile  {{
    unit = us
    forward = [2000, 2400]  backward_input = [2400, 2800]  backward_weight = [1600, 2000]
    optimizer = 3000  reduce = 2000  transfer = 300  activation = 1
  }}
  memory     {{ capacity = 6 }}
  techniques {{ adaptive  decouple  stagger }}
  tolerate   {{ failures = 4 }}
}}
"""
"""Op times are estimates: they decide the order of ops, and nothing here is compared with them."""

JOINING_SHARE = 0.15
"""Of kills that go to a worker which has not got its state yet, if there is one."""
PAIR_SHARE = 0.15
"""Of moments at which two workers are killed at once, if that is allowed."""
LAST_STEP = 1_000_000
CHECKPOINT_EVERY = 200
"""Steps; each run takes another checkpoint at its end, and only a run that fails needs these."""
HEARTBEAT_TIMEOUT = 10.0
"""Seconds. A killed worker is noticed by the end of its process, and a busy machine should fail no other."""
TIME_UP = "its time is up"
ENDING = 25.0
"""Seconds for the last run to end in order, before the budget is spent."""
LEAST = 15.0
"""Seconds besides: with less time left no other run begins."""

Worker = tuple[int, int]
_MOVE = re.compile(r"(\d+):(\d+) to \d+:\d+")


class Holders:
    """Workers that hold trained state, for all that an observer of the job knows.

    One that is killed counts again when another process of it has joined, has got its state, and trains in
    a generation that was ordered since.
    """

    def __init__(self) -> None:
        self.workers: set[Worker] = set()
        self._number = 0
        """Of the newest generation."""
        self._ordered: set[Worker] = set()
        """Workers that train in it, once they have begun."""
        self._killed: set[int] = set()
        """Process numbers."""

    def take(self, message: ToObserver, pids: Mapping[Worker, int]) -> None:
        """`pids`: worker processes that run now."""
        if isinstance(message, Generation):
            self._number = message.number
            running = {worker for worker, pid in pids.items() if pid not in self._killed}
            self._ordered = {worker for worker in message.workers if worker in running}
            self.workers &= self._ordered
        elif isinstance(message, Recovered) and message.generation == self._number:
            self.workers = set(self._ordered)
        elif isinstance(message, JobEvent):
            # Such as `move 0:0 to 2:1`: what it holds is of no use there.
            self.workers -= {(int(move[1]), int(move[2])) for move in _MOVE.finditer(message.text)}

    def kill(self, worker: Worker, pid: int) -> None:
        """This process of it is gone."""
        self._killed.add(pid)
        self._ordered.discard(worker)
        self.workers.discard(worker)

    def not_killed(self, pids: Mapping[Worker, int]) -> dict[Worker, int]:
        """Those of the processes that have not been sent SIGKILL."""
        return {worker: pid for worker, pid in pids.items() if pid not in self._killed}


def may_be_killed(holders: Collection[Worker], running: Collection[Worker]) -> list[Worker]:
    """Running workers without which every stage still has one that holds its state."""
    held = [worker for worker in holders if worker in running]
    return sorted(
        worker for worker in running if any(other != worker and other[1] == worker[1] for other in held)
    )


def choose_victims(
    chance: random.Random, holders: Collection[Worker], running: Collection[Worker]
) -> list[Worker]:
    """One worker or two to kill at once; none if nobody may be."""
    left, found = set(running), list[Worker]()
    wants_joining = chance.random() < JOINING_SHARE
    for _ in range(2 if chance.random() < PAIR_SHARE else 1):
        allowed = may_be_killed(holders, left)
        joining = [worker for worker in allowed if worker not in holders]
        training = [worker for worker in allowed if worker in holders]
        # Joiners are not killed for want of others: with one holder on each stage the job needs them.
        pool = joining if joining and wants_joining else training
        if not pool:
            break
        found.append(chance.choice(pool))
        left.remove(found[-1])
    return found


class Killer:
    """Kills worker processes of a job at random moments, from its first step until it is ended."""

    def __init__(self, table: ProcessTable, record: RecordFile, every: float, chance: random.Random) -> None:
        """`every`: seconds from one moment to the next, on average."""
        self._table, self._record, self._every, self._chance = table, record, every, chance
        self._holders = Holders()
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def take(self, message: ToObserver) -> None:
        """News of the job."""
        with self._lock:
            self._holders.take(message, self._pids() if isinstance(message, Generation) else {})
        if isinstance(message, StepRow) and not self._thread.is_alive() and not self._is_over.is_set():
            self._thread.start()

    def end(self) -> None:
        """No kill comes after this."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._is_over.wait(self._every * self._chance.uniform(0.5, 1.5)):
            with self._lock:
                self._strike()

    def _strike(self) -> None:
        pids = self._holders.not_killed(self._pids())
        for worker in choose_victims(self._chance, self._holders.workers, pids):
            state = "training" if worker in self._holders.workers else "joining"
            at = time.monotonic()
            try:
                os.kill(pids[worker], signal.SIGKILL)
            except ProcessLookupError:
                continue
            self._holders.kill(worker, pids[worker])
            self._record.write("kill", at, worker=worker, state=state, pid=pids[worker])

    def _pids(self) -> dict[Worker, int]:
        """Processes that are not about to end."""
        return {row.member.worker: row.pid for row in self._table.written() if _is_running(row.pid)}


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and exit_of(pid) is None


class RunSettings(NamedTuple):
    """Options of `run` that every run needs."""

    folder: Path
    """For bundle and records."""
    device: str
    graphs: Literal["auto", "on", "off"]
    every: float
    seed: int


class SeriesRun:
    """One run of a series: its options, what is recorded of it, and when it ends."""

    def __init__(self, settings: RunSettings, series: str, checkpoints: Path, limit: float) -> None:
        """`limit`: when it ends at the latest, by the monotonic clock."""
        self._settings, self._limit = settings, limit
        self._checkpoints = checkpoints / series
        self._number = len(list(settings.folder.glob(f"{series}-*.jsonl")))
        self.name = f"{series}-{self._number}"
        self._is_disturbed = series == DISTURBED
        self.steps = 0
        self._next: int | None = None
        """The step after the last row."""

    def train(self, seconds: float) -> str | None:
        """For so long after its first step; None, or why it did not end in order."""
        record = RecordFile(self._settings.folder / f"{self.name}.jsonl")
        with tempfile.TemporaryDirectory(prefix="kills-") as state:
            killer = self._killer(Path(state), record) if self._is_disturbed else None

            def take(message: ToObserver) -> None:
                at = time.monotonic()
                if killer is not None:
                    killer.take(message)
                if isinstance(message, StepRow) and self._next is None:
                    self._limit = min(self._limit, at + seconds)
                self._note(record, at, message)

            def stop() -> str | None:
                if time.monotonic() < self._limit:
                    return None
                if killer is not None:
                    killer.end()
                return TIME_UP

            try:
                run_local(self._options(state), take, stop)
                error = None
            except (RunError, NoFittingPlanError) as raised:
                error = self._why_early(str(raised))
            finally:
                if killer is not None:
                    killer.end()
            record.write("end", time.monotonic(), error=error)
            record.close()
        return error

    def _killer(self, state: Path, record: RecordFile) -> Killer:
        table = ProcessTable(state / "node" / PROCESSES, WORKERS)
        chance = random.Random(f"{self._settings.seed} {self._number}")
        return Killer(table, record, self._settings.every, chance)

    def _options(self, state: str) -> RunOptions:
        settings = self._settings
        return RunOptions(
            str(settings.folder / "kills.plan"),
            PROGRAM,
            LAST_STEP,
            device=settings.device,
            graphs=settings.graphs,
            restarts_workers=True,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            checkpoint=str(self._checkpoints),
            checkpoint_every=CHECKPOINT_EVERY,
            resume=self._newest() > 0,
            stop_timeout=ENDING - 5,
            adaptation=AdaptationOptions(mtbf=settings.every, replan=None, recut="off"),
            state=state,
        )

    def _note(self, record: RecordFile, at: float, message: ToObserver) -> None:
        match message:
            case StepRow(step, loss, took, live):
                self._next, self.steps = step + 1, self.steps + 1
                record.write("row", at, step=step, loss=loss, seconds=round(took, 6), live=live)
            case Generation(number, step, plan, workers, standbys):
                fields = {"number": number, "step": step, "plan": plan, "standbys": standbys}
                record.write("generation", at, workers=workers, **fields)
            case Recovered():
                record.write(
                    "recovered",
                    at,
                    causes=message.causes,
                    step=message.step,
                    undone=message.undone,
                    repeated=round(message.repeated, 6),
                    leaving=message.leaving,
                    regroup=message.regroup,
                    number=message.generation,
                )
            case _ if (words := event_of(message)) is not None:
                record.write("event", at, text=words)
            case _:
                pass

    def _why_early(self, said: str) -> str | None:
        """None if it was asked to end, and its last checkpoint has all its steps."""
        is_whole = self._next is not None and self._newest() == self._next
        return None if said.startswith(TIME_UP) and is_whole else said

    def _newest(self) -> int:
        """Steps that the newest checkpoint has; 0 if there is none."""
        found, _ = CheckpointFolder(self._checkpoints).look()
        return found[0].manifest.step if found else 0


def compile_plans(folder: Path) -> None:
    """One bundle with a plan for every number of failures on each stage: none can be made during `run`."""
    from recycle_compiler.backends.bundle import write_bundle
    from recycle_compiler.frontend import load_job
    from recycle_compiler.ir.failure import failure_set
    from recycle_compiler.planner.compile import plan_failed

    path = folder / "kills.job"
    path.write_text(JOB)
    loaded = load_job(str(path))
    counts = product(range(PIPELINES), repeat=STAGES)
    failed = (
        [(pipeline, stage) for stage, count in enumerate(each) for pipeline in range(count)]
        for each in counts
    )
    plans = [plan_failed(loaded.spec, failure_set(workers)) for workers in failed]
    write_bundle(folder / "kills.plan", source=loaded.source, plans=plans)


def run(arguments: argparse.Namespace) -> None:
    """Both series, until the budget is spent."""
    deadline = time.monotonic() + arguments.budget
    if arguments.device == "cpu":
        os.environ["SMALL_LLAMA"] = "tiny"
    settings = RunSettings(
        arguments.folder, arguments.device, arguments.cuda_graphs, arguments.every, arguments.seed
    )
    logs.configure("info", str(arguments.folder / "kills.log"))
    with _devices(arguments.device), _checkpoints(arguments.checkpoint) as checkpoints:
        limit = deadline - ENDING
        if not checkpoints.is_dir() or not any(checkpoints.iterdir()):
            _forget_records(arguments.folder, (DISTURBED, UNDISTURBED) if arguments.share else (DISTURBED,))
        if arguments.share:
            _train(SeriesRun(settings, UNDISTURBED, checkpoints, limit), arguments.share * arguments.budget)
        runs = fruitless = 0
        while runs < arguments.runs and limit - time.monotonic() > LEAST and fruitless < 2:
            one = SeriesRun(settings, DISTURBED, checkpoints, limit)
            _train(one, arguments.seconds)
            runs, fruitless = runs + 1, 0 if one.steps else fruitless + 1


def _forget_records(folder: Path, forgotten: Collection[str]) -> None:
    """Delete those of earlier series, which no run goes on from."""
    for series in forgotten:
        for path in folder.glob(f"{series}-*.jsonl"):
            path.unlink()


def _train(one: SeriesRun, seconds: float) -> None:
    error = one.train(seconds)
    print(f"{one.name}: {one.steps} steps{'' if error is None else f', ended early: {error}'}", flush=True)


@contextmanager
def _devices(device: str) -> Generator[None]:
    """Six devices in CUDA_VISIBLE_DEVICES, unless it names as many or none are needed."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if device == "cpu" or len(named) >= WORKERS:
        yield
        return
    with mig_devices() as devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices[:WORKERS])
        yield


@contextmanager
def _checkpoints(folder: Path | None) -> Generator[Path]:
    """A folder that the user has named, or a temporary one."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="kills-checkpoints-") as temporary:
        yield Path(temporary)


def report(folder: Path, picture: Path) -> None:
    """The table goes to stdout and to a file, the loss curves to the docs."""
    quiet, disturbed = (read_runs(folder, name) for name in (UNDISTURBED, DISTURBED))
    table = markdown(report_rows(quiet, disturbed))
    print(table, end="")
    (folder / "table.md").write_text(table)
    picture.write_text(kill_picture(quiet, disturbed), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("all", "compile", "run", "report"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds of `run` (default: 480)")
    words = "of them, undisturbed; 0 keeps what DIR has of that (default: 0.3)"
    parser.add_argument("--share", type=float, default=0.3, help=words)
    parser.add_argument("--runs", type=int, default=1000, help="under kills, at most (default: 1000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of them (default: 60)")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between kills (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills (default: 0)")
    parser.add_argument("--cuda-graphs", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--checkpoint", type=Path, help="folder to go on from (default: a temporary one)")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="default: docs/thousand-kills.svg")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what in ("compile", "all"):
        compile_plans(arguments.folder)
    if arguments.what in ("run", "all"):
        run(arguments)
    if arguments.what in ("report", "all"):
        report(arguments.folder, arguments.picture)


if __name__ == "__main__":
    main()
