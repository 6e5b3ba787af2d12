"""Bytes that micro-batches hold, planned and measured: `python -m bench.memory_use [--program FILE]`.

The running example, with the program's own bytes in place of its counts: what one micro-batch of each stage
holds is measured, the job is planned with that, and its workers run as processes over gloo, each counting the
storages that are alive after every instruction. Messages that wait for their receiver are counted apart: a
plan has no room for them. What an operation needs only while it runs is not counted.
"""

import argparse
import dataclasses
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.reductions import StorageWeakRef

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.verifier.verify import verify_plan
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.handlers import GRADIENTS_UNDER_WAY
from recycle_runtime.execution.interpreter import Handler, Interpreter
from recycle_runtime.execution.split_backward import Split, prepare
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.profiler.meters import counting
from recycle_runtime.profiler.stage_run import StageRun, as_tensors
from recycle_runtime.program.loading import Program, load_program
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Grid, Pending
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from recycle_runtime.worker.options import WorkerOptions

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
STEPS = 2
CPU = torch.device("cpu")
_LOADED_ONCE = ("torch", "recycle_compiler.planner.compile", "recycle_runtime.worker.fixed_plan")
"""By the process that all workers are copies of."""
SMALLEST = 97
"""Bytes: single numbers (losses, sums that show whether all is finite) are no activations, and neither are
the three numbers for each of four stages that workers add up after a step."""
COMPUTES = (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)
RECEIVES = (Opcode.RECV_ACTIVATION, Opcode.RECV_GRADIENT)
PLANS: dict[str, tuple[Techniques, list[Worker]]] = {
    "1F1B": (Techniques(False, False, False), []),
    "zero-bubble": (Techniques(), []),
    "one failure": (Techniques(), [(1, 2)]),
}


class StageBytes(NamedTuple):
    """Of one micro-batch in one stage."""

    activation: int
    """From F on."""
    kept: int
    """Between I and W."""
    arriving: int
    """A message from the stage before, and its gradient; 0 for the first."""


class Use(NamedTuple):
    """One worker, at the end."""

    worker: Worker
    planned: int
    """The plan's peak."""
    measured: int
    """Messages left out."""
    messages: int
    """The most of them at once."""
    room: int
    """For messages: its inboxes, and the gradients that may be under way."""
    excess: int
    """Over what the plan has at that instruction; never over 0."""


def measure_stages(program_file: str, stages: int) -> list[StageBytes]:
    """One micro-batch after F and after I, stage by stage."""
    program = load_program(program_file)
    data, target = next(program.batches(0))
    inputs, found = as_tensors(data), list[StageBytes]()
    for stage in range(stages):
        module = build_module(program, stage, stages, 0)
        is_last = stage == stages - 1
        loss = partial(_loss, program, target) if is_last else None
        run, split = StageRun(module, inputs, is_first=stage == 0, loss=loss), prepare(module)
        # The first call of a module looks at it; the second is as all others.
        _one_micro_batch(run, split)
        saved, kept = _one_micro_batch(run, split)
        arriving = sum(map(_bytes, inputs)) if stage else 0
        found.append(StageBytes(max(saved, kept), kept, arriving))
        with torch.no_grad():
            inputs = run.forward(inputs)
    return found


def _loss(program: Program, target: Any, output: Any) -> torch.Tensor:
    return program.loss(output, target)


def _one_micro_batch(run: StageRun, split: Split) -> tuple[int, int]:
    """Bytes held from F to I, and from I to W."""
    with counting(CPU) as held:
        inputs = run.fresh_inputs()
        outputs = run.forward(inputs)
        saved = held()
        work = split.backward_input(outputs, run.gradients(outputs))
        _send_on(inputs)
        del inputs, outputs
        kept = held()
        work.run()
    return saved, kept


def _send_on(inputs: Sequence[torch.Tensor]) -> None:
    """Their gradients leave, though the inputs may stay for W."""
    for each in inputs:
        each.grad = None


def job_in_bytes(stages: Sequence[StageBytes], techniques: Techniques) -> JobSpec:
    """The running example with room for as many micro-batches as it has, in bytes."""
    job = load_job(str(ROOT / "examples" / "figure3.job")).spec
    counts = [
        0 if room is None else room // held for room, held in zip(job.capacity, job.activation, strict=True)
    ]
    return dataclasses.replace(
        job,
        memory_unit="byte",
        activation=tuple(stage.activation for stage in stages),
        kept_for_weight=tuple(stage.kept for stage in stages),
        capacity=tuple(count * stage.activation for count, stage in zip(counts, stages, strict=True)),
        techniques=techniques,
    )


def measure(program_file: str, techniques: Techniques, failed: Sequence[Worker]) -> list[Use]:
    """Plan, run two steps, and look at every worker after every instruction."""
    with tempfile.TemporaryDirectory() as folder:
        bytes_of = measure_stages(program_file, 4)
        job = job_in_bytes(bytes_of, techniques)
        path = Path(folder) / "memory.plan"
        write_bundle(path, source="", plans=[plan_failed(job, failure_set(failed))])
        bundle = Bundle.read(str(path))
        program = _with_data_made_before(Path(folder), program_file, STEPS * job.pipelines * job.microbatches)
        counted = _run(bundle, str(path), program, bytes_of)
        peaks = {tuple(worker): amount for worker, amount in verify_plan(bundle, 0).peak_memory}
    return [Use(worker, peaks[worker], *found) for worker, found in sorted(counted.items())]


class Meter:
    """Counts what one worker holds, beside what its stream says that it should."""

    def __init__(self, stage: int, size: StageBytes) -> None:
        self._stage, self._size = stage, size
        self.sent: list[tuple[Any, int]] = []
        """Gradients on their way to the stage before, and their bytes."""
        self.peak = self.messages = 0
        self.excess = -(1 << 62)
        self._held: Callable[[], int] = lambda: 0
        self._other = self._planned = 0
        self._inboxes: dict[int, int] = {}
        self._inbox_room: dict[int, int] = {}
        self._receivers: set[int] = set()
        self._to_send: set[tuple[int, int]] = set()

    def room(self) -> int:
        """Memory that its messages may take."""
        gradients = len(self._receivers) * (GRADIENTS_UNDER_WAY + 1) * self._size.arriving
        return sum(self._inbox_room.values()) + gradients

    def watch(self, worker: FixedPlanWorker, held: Callable[[], int]) -> None:
        """From now on, look after every instruction."""
        self._held = held
        old = worker.session.interpreter
        table = {opcode: self._around(handler) for opcode, handler in worker.session.handlers.table().items()}
        worker.session.interpreter = Interpreter(old.stream, table, old.worker, old.plan, old.pipelines)

    def _around(self, handler: Handler) -> Handler:
        def run(instruction: Instruction) -> None:
            before = self._held()
            handler(instruction)
            self._note(instruction, self._held() - before)
            self._compare()

        return run

    def _note(self, instruction: Instruction, change: int) -> None:
        opcode, size = instruction.opcode, self._size
        if opcode in RECEIVES:
            self._inboxes[instruction.inbox] = change
            self._inbox_room[instruction.inbox] = max(change, self._inbox_room.get(instruction.inbox, 0))
        elif opcode in COMPUTES and instruction.inbox != NONE:
            del self._inboxes[instruction.inbox]
        elif opcode not in COMPUTES and opcode is not Opcode.SEND_GRADIENT:
            # Optimizer state, the sum of squares and the like stay or go with these instructions alone.
            self._other += change
        self._planned += {
            Opcode.FORWARD: size.activation,
            Opcode.BACKWARD: -size.activation,
            Opcode.BACKWARD_INPUT: size.kept - size.activation,
            Opcode.BACKWARD_WEIGHT: -size.kept,
        }.get(opcode, 0)
        unit = (instruction.pipeline, instruction.microbatch)
        if opcode in (Opcode.BACKWARD, Opcode.BACKWARD_INPUT) and self._stage > 0:
            self._to_send.add(unit)
        elif opcode is Opcode.SEND_GRADIENT:
            self._to_send.discard(unit)
            self._receivers.add(instruction.neighbour)

    def _compare(self) -> None:
        self.sent = [(reference, size) for reference, size in self.sent if not reference.expired()]
        messages = sum(self._inboxes.values()) + sum(size for _, size in self.sent)
        messages += len(self._to_send) * self._size.arriving
        activations = self._held() - self._other - messages
        self.messages = max(self.messages, messages)
        self.peak = max(self.peak, activations)
        self.excess = max(self.excess, activations - self._planned)


class _Metered(GlooTransport):
    """Gloo, with an eye on the gradients that it holds."""

    def __init__(self, meter: Meter, options: WorkerOptions, store: Any, grid: Grid) -> None:
        others = [worker for worker in grid.workers if worker != options.worker]
        super().__init__(store, "first", grid, options.worker, 0, timedelta(seconds=PATIENCE), others)
        self._meter, self._stage = meter, options.worker[1]

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        if worker[1] < self._stage:
            self._meter.sent += [(StorageWeakRef(each.untyped_storage()), _bytes(each)) for each in tensors]
        return super().send(worker, tensors)


class Task(NamedTuple):
    """Orders to one worker."""

    place: Worker
    size: StageBytes
    bundle: str
    program: str
    port: int
    """Of the store that workers meet at."""


class Counted(NamedTuple):
    """Bytes that one worker has counted; see `Use`."""

    measured: int
    messages: int
    room: int
    excess: int


def _run(bundle: Bundle, path: str, program: str, size: Sequence[StageBytes]) -> dict[Worker, Counted]:
    """All workers as processes: torch does not bear that several threads have their operations counted."""
    store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    places = bundle.workers(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_LOADED_ONCE])
    tasks = [Task(place, size[place[1]], path, program, store.port) for place in places]
    with ProcessPoolExecutor(len(places), context) as pool:
        return dict(zip(places, pool.map(_work, tasks), strict=True))


def _work(task: Task) -> Counted:
    torch.set_num_threads(1)
    store: Any = TCPStore("127.0.0.1", task.port, is_master=False)
    meter = Meter(task.place[1], task.size)
    options = WorkerOptions(
        task.bundle, task.program, steps=STEPS, plan=0, worker=task.place, tp_rank=0, timeout=PATIENCE
    )
    worker = FixedPlanWorker(options, store, lambda told, _, grid, __: _Metered(meter, told, store, grid))
    with counting(CPU, SMALLEST) as held:
        meter.watch(worker, held)
        worker.train(lambda _: None)
    worker.transport.barrier()
    return Counted(meter.peak, meter.messages, meter.room(), meter.excess)


def _with_data_made_before(folder: Path, program_file: str, count: int) -> str:
    """The program with its micro-batches drawn when it is loaded, so that they are not counted."""
    path = folder / "drawn.py"
    source = str(Path(program_file).resolve())
    path.write_text(
        f"from itertools import islice\nfrom pathlib import Path\n"
        f"exec(compile(Path({source!r}).read_text(), {source!r}, 'exec'))\n"
        f"_drawn = list(islice(batches(0), {count}))\n"
        "def batches(seed):\n    return iter(_drawn)\n"
    )
    return str(path)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--program", default=str(ROOT / "examples" / "programs" / "gpt.py"))
    program: str = parser.parse_args().program
    print("plan         stage  planned KiB  measured KiB  messages KiB")
    for name, (techniques, failed) in PLANS.items():
        uses = measure(program, techniques, failed)
        for stage in range(4):
            here = [use for use in uses if use.worker[1] == stage]
            planned, measured, messages = (
                max(column) / 1024
                for column in zip(*((use.planned, use.measured, use.messages) for use in here), strict=True)
            )
            print(f"{name:12} {stage:5}  {planned:11.1f}  {measured:12.1f}  {messages:12.1f}")


if __name__ == "__main__":
    main()
