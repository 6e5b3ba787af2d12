"""Six GPUs, 2 stages x 3 pipelines over NCCL: measured against what plans predict, and beside torch.

    python -m bench.nccl_grid measure DIR    profile on the devices; stdlib, torch and recycle_runtime alone
    python -m bench.nccl_grid compile DIR    plans from that profile; needs no GPU
    python -m bench.nccl_grid run DIR        trains with every plan and with torch.distributed.pipelining
    python -m bench.nccl_grid report DIR     tables of what was found; needs no GPU

The GPUs are MIG devices of one H200: `measure` and `run` divide it, as root, unless CUDA_VISIBLE_DEVICES has
the names of six. `--device cpu` does the same with a tiny model over gloo. Torch trains the same model with
the same data and optimizer: a schedule of its own in each pipeline, gradients in buckets of 25 MiB that are
summed over pipelines as soon as the last micro-batch has added to all of a bucket (with split backwards: at
the end), and the norm over stages is limited. Torch's data lies on its device beforehand.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import accumulate
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "bench" / "programs" / "wide_gpt.py"
STAGES, PIPELINES, MICROBATCHES = 2, 3, 6
WORKERS = STAGES * PIPELINES
HELD = 4
"""Activations that a worker has memory for."""
ROUND = 3
"""Steps that are timed together."""
CHECKED_STEPS = 12
"""Of which losses are compared."""
TRACED_STEPS = 6
BUCKET_BYTES = 25 << 20
CLIP_NORM = 10.0
"""The norm is computed in every step, and hardly ever reached: a clipped step is another test."""
MEASURE_SECONDS, RUN_SECONDS = 240.0, 75.0
"""The longest that a profile, and a run of a plan or of one of torch's schedules, may take."""
PARTS = ("plans", "torch", "kernels", "trace")


class Size(NamedTuple):
    """A model's size, and for how long it is trained."""

    sizes: dict[str, int]
    """Names of examples/programs/gpt.py."""
    rounds: int
    repeat: int
    """Measurements of each op for the profile."""

    @property
    def steps(self) -> int:
        return LEFT_OUT + ROUND * self.rounds


LEFT_OUT = 12
"""Steps before the first round: in the first few, ours captures graphs, and waits for the norm if it is
large."""
SIZES = {
    "cuda": Size({"BLOCKS": 16, "WIDTH": 512, "HEADS": 8, "SEQUENCE": 1024, "MICROBATCH": 6}, 6, 20),
    "cpu": Size({"BLOCKS": 2, "WIDTH": 32, "HEADS": 2, "SEQUENCE": 32, "MICROBATCH": 2}, 2, 3),
}
JOB = """job grid {{
  parallel {{ pipeline = {stages}  data = {pipelines}  tensor = 1 }}
  batch    {{ microbatches = {microbatches} }}
  profile from "{profile}"
  memory     {{ capacity = {capacity} }}
  techniques {{ {techniques} }}
  tolerate   {{ failures = 0 }}
}}
"""


class Plan(NamedTuple):
    """A plan to run."""

    name: str
    techniques: str
    failed: tuple[tuple[int, int], ...] = ()
    measured: int = PIPELINES
    """Pipelines of the profile that it is planned with: sums among fewer peers take less, and fewer processes
    leave each other more of the host."""

    @property
    def profile(self) -> str:
        return f"profile-{self.measured}.json"


ALL = "adaptive  decouple  stagger"
PLANS = (
    Plan("1F1B", ""),
    Plan("zero-bubble", ALL),
    Plan("1:1 failed", ALL, ((1, 1),)),
    Plan("0:0 and 1:1 failed", ALL, ((0, 0), (1, 1)), PIPELINES - 1),
)
TRACED = 1
"""The plan whose trace is recorded."""


class Schedule(NamedTuple):
    """A schedule of torch."""

    name: str
    beside: str
    """The plan of ours that it is compared with."""
    chunks: tuple[tuple[int, ...], ...]
    """Stages of each process of a pipeline."""


SCHEDULES = (
    Schedule("Schedule1F1B", "1F1B", ((0,), (1,))),
    Schedule("ScheduleInterleavedZeroBubble", "zero-bubble", ((0,), (1,))),
    Schedule("ScheduleZBVZeroBubble", "zero-bubble", ((0, 3), (1, 2))),
)
UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
"""Milliseconds."""


def program_text(sizes: Mapping[str, int]) -> str:
    """The program at this size; it is written where it runs, since it names a file of this checkout."""
    return f'''"""{PROGRAM.name} with {", ".join(f"{name} {value}" for name, value in sizes.items())}."""

import importlib.util

_spec = importlib.util.spec_from_file_location("wide_gpt", {str(PROGRAM)!r})
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_module._GPT.update({dict(sizes)!r})
CLIP_NORM = {CLIP_NORM}
layers, loss, batches, optimizer = _module.layers, _module.loss, _module.batches, _module.optimizer
'''


def measure(folder: Path, device: str) -> None:
    """Profiles of both stages, with links between six devices, and between as many as a plan has workers."""
    with devices(device):
        for pipelines in sorted({plan.measured for plan in PLANS}):
            command = ["profile", "--program", str(_program(folder, device)), "--stages", str(STAGES)]
            command += ["--pipelines", str(pipelines), "--device", device]
            command += [
                "--repeat",
                str(SIZES[device].repeat),
                "-o",
                str(folder / f"profile-{pipelines}.json"),
            ]
            runtime(*command, seconds=MEASURE_SECONDS)


def compile_plans(folder: Path) -> None:
    """One bundle for every plan, and the milliseconds of a step that it predicts."""
    predicted: dict[str, float] = {}
    recyclec = str(Path(sys.executable).parent / "recyclec")
    for number, plan in enumerate(PLANS):
        job, bundle = folder / f"{number}.job", str(folder / f"{number}.plan")
        profile: dict[str, Any] = json.loads((folder / plan.profile).read_text())
        job.write_text(job_text(profile, plan.techniques, plan.profile))
        words = ["plan", str(job), "--failed", failed_text(plan)] if plan.failed else ["compile", str(job)]
        subprocess.run([recyclec, "--quiet", *words, "-o", bundle], check=True)
        shown = subprocess.run(
            [recyclec, "show", bundle, "--format", "json"], check=True, capture_output=True
        )
        found: dict[str, Any] = json.loads(shown.stdout)
        predicted[plan.name] = float(found["period"]) * UNITS[found["unit"]]
        print(f"{plan.name}: {predicted[plan.name]:.1f} ms predicted")
    (folder / "predicted.json").write_text(json.dumps(predicted))


def job_text(profile: dict[str, Any], techniques: str, name: str) -> str:
    """The job with memory for HELD activations of the largest stage; `name` is the profile's."""
    most = max(stage["activation_bytes"] for stage in profile["stages"])
    return JOB.format(
        stages=STAGES,
        pipelines=PIPELINES,
        microbatches=MICROBATCHES,
        capacity=f"{-(-HELD * most // 1024)} KiB",
        techniques=techniques,
        profile=name,
    )


def failed_text(plan: Plan) -> str:
    """As options take it."""
    return ",".join(f"{pipeline}:{stage}" for pipeline, stage in plan.failed)


def run(folder: Path, device: str, parts: Sequence[str] = PARTS) -> None:
    """Every plan, every schedule of torch, a trace, and kernels; what is found is written at once.

    Parts that are not asked for stay as an earlier run has left them.
    """
    path = folder / "run.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"ours": {}, "torch": {}}
    program, bundle = _program(folder, device), str(folder / f"{TRACED}.plan")

    def keep(words: str) -> None:
        path.write_text(json.dumps(found))
        print(words, flush=True)

    with devices(device) as names:
        for number, plan in enumerate(PLANS if "plans" in parts else ()):
            found["ours"][plan.name] = ours = _run_plan(folder, program, number, device)
            keep(f"{plan.name}: {_words(ours)}")
        if "torch" in parts:
            for name, theirs in _torch_results(names, program, device):
                found["torch"][name] = theirs
                keep(f"{name}: {_words(theirs)}")
        if "kernels" in parts:
            found["kernels"] = _kernels(names, program, device, bundle)
            keep(f"kernels: {found['kernels'][:STAGES]}")
        if "trace" in parts:
            found["trace"] = _trace(folder, bundle, program, device)
            keep(f"trace: {found['trace']}")


def _torch_results(names: Sequence[str], program: Path, device: str) -> Generator[tuple[str, dict[str, Any]]]:
    with processes(_train_with_torch, names, str(program), device) as pipes:
        for schedule in SCHEDULES:
            try:
                yield schedule.name, joined(answers(pipes, RUN_SECONDS))
            except ProcessError as error:
                # The others wait for one that is gone: there is nothing more to hear.
                yield schedule.name, {"rounds": [], "losses": [], "error": str(error)}
                return


def _kernels(names: Sequence[str], program: Path, device: str, bundle: str) -> list[dict[str, Any]]:
    with processes(_record_kernels, names, str(program), device, bundle) as pipes:
        try:
            return answers(pipes, RUN_SECONDS)
        except ProcessError as error:
            print(error, flush=True)
            return []


def _words(result: dict[str, Any]) -> str:
    if result["error"]:
        return result["error"]
    rounds: list[float] = result["rounds"]
    return f"{median(rounds):.1f} ms ({min(rounds):.1f} to {max(rounds):.1f})"


def _run_plan(folder: Path, program: Path, number: int, device: str) -> dict[str, Any]:
    """`recycle-run local` with a plan: losses, and milliseconds of a step in each round."""
    from recycle_runtime.launcher.local import RunError, RunOptions, run_local
    from recycle_runtime.plan.plan_choice import NoFittingPlanError
    from recycle_runtime.protocol.messages.observers import ToObserver
    from recycle_runtime.protocol.messages.steps import StepRow

    size = SIZES[device]
    ends: list[float] = []
    losses: list[float] = []
    give_up = time.monotonic() + RUN_SECONDS

    def take(message: ToObserver) -> None:
        if isinstance(message, StepRow):
            ends.append(time.perf_counter())
            losses.append(message.loss_or_nan)

    options = RunOptions(
        str(folder / f"{number}.plan"),
        str(program),
        size.steps,
        PLANS[number].failed,
        device=device,
        heartbeat_timeout=20.0,
        first_step_timeout=RUN_SECONDS,
        stop_timeout=1.0,
    )
    error = ""
    try:
        run_local(options, take, lambda: "it takes too long" if time.monotonic() > give_up else None)
    except (RunError, NoFittingPlanError) as raised:
        error = str(raised)
    return {"rounds": rounds_of(ends), "losses": losses, "error": error}


def rounds_of(ends: Sequence[float], left_out: int = LEFT_OUT, steps: int = ROUND) -> list[float]:
    """Milliseconds of a step in each round, from the seconds at which steps ended."""
    firsts = range(left_out - 1, len(ends) - steps, steps)
    return [1000 * (ends[first + steps] - ends[first]) / steps for first in firsts]


def joined(rows: Sequence[tuple[list[float], list[float]]]) -> dict[str, Any]:
    """Measurements of a schedule from all processes: the slowest of each round, and the sum of their
    losses."""
    rounds = [max(times) for times in zip(*(times for times, _ in rows), strict=True)]
    losses = [sum(parts) for parts in zip(*(losses for _, losses in rows), strict=True)]
    return {"rounds": rounds, "losses": losses, "error": ""}


def _trace(folder: Path, bundle: str, program: Path, device: str) -> dict[str, Any]:
    """Time that workers compute and wait, from a trace that is recorded here."""
    path = folder / "trace.json"
    words = ["local", bundle, "--program", str(program), "--steps", str(TRACED_STEPS), "--device", device]
    try:
        runtime("--quiet", *words, "--trace", str(path), seconds=RUN_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    return waits_of(json.loads(path.read_text())["traceEvents"])


def waits_of(events: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Milliseconds in a step of each worker: ops, waits before them, and by how much ops are longer than the
    shortest of their kind, which is where a GPU waits that was told to. The first half is left out."""
    spans = [event for event in events if event["ph"] == "X" and event["args"]["step"] >= TRACED_STEPS // 2]
    steps = TRACED_STEPS - TRACED_STEPS // 2
    found: dict[str, dict[str, float]] = {}
    for worker in sorted({event["args"]["worker"] for event in spans}):
        own = [event for event in spans if event["args"]["worker"] == worker]
        kinds: dict[str, list[float]] = {}
        for event in own:
            if event["cat"] == "step":
                kinds.setdefault(event["name"][0], []).append(event["dur"])
        beyond = sum(sum(times) - len(times) * min(times) for kind, times in kinds.items() if kind in "FBI")
        found[worker] = {
            "ops": sum(map(sum, kinds.values())) / steps / 1000,
            "waited": sum(event["dur"] for event in own if event["cat"] == "wait") / steps / 1000,
            "beyond shortest": beyond / steps / 1000,
        }
    return found


Span = tuple[float, float]


def covered(spans: Sequence[Span], cover: Sequence[Span]) -> float:
    """Length of these spans that lies under others, which may overlap each other."""
    merged: list[list[float]] = []
    for start, end in sorted(cover):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in spans
        for other_start, other_end in merged
    )


def kernels_of(events: Iterable[dict[str, Any]], steps: int) -> dict[str, Any]:
    """Milliseconds in a step of a worker's kernels: messages of each stream, sums, computation; and how much
    of messages and sums lies under computation. `events` is a trace of torch.profiler."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    computing = [_span(each) for each in kernels if "nccl" not in each["name"]]
    kinds: dict[str, list[Span]] = {}
    for each in kernels:
        if "nccl" in each["name"]:
            kind = "messages" if "SendRecv" in each["name"] else "sums"
            kinds.setdefault(f"{kind} on stream {each['args']['stream']}", []).append(_span(each))
    found: dict[str, Any] = {"computation": sum(end - start for start, end in computing) / steps / 1000}
    for kind, spans in kinds.items():
        total = sum(end - start for start, end in spans)
        found[kind] = {
            "in a step": len(spans) / steps,
            "ms": total / steps / 1000,
            "under computation": covered(spans, computing) / total,
        }
    return found


def _span(event: dict[str, Any]) -> Span:
    return event["ts"], event["ts"] + event["dur"]


# Processes with a device each; they import torch here and not above, so that `report` needs none.


@contextmanager
def processes(
    work: Callable[..., None], names: Sequence[str], *arguments: Any, count: int = WORKERS
) -> Generator[list[Connection]]:
    """Six processes, rank = pipeline x STAGES + stage; what they send comes out of the pipes."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    started: list[tuple[Any, Connection]] = []
    try:
        for rank in range(count):
            ours, theirs = context.Pipe()
            name = names[rank] if names else ""
            process = context.Process(
                target=_serve, args=(work, rank, name, store.port, theirs, *arguments), daemon=True
            )
            process.start()
            theirs.close()
            started.append((process, ours))
        yield [pipe for _, pipe in started]
    finally:
        for process, _ in started:
            process.kill()
        for process, pipe in started:
            process.join()
            pipe.close()


class ProcessError(RuntimeError):
    """A process failed, or stopped answering."""


def answers(pipes: Sequence[Connection], seconds: float) -> list[Any]:
    """One of each process; the first that fails ends the wait."""
    found: dict[Connection, Any] = {}
    give_up = time.monotonic() + seconds
    while missing := [pipe for pipe in pipes if pipe not in found]:
        ready = wait(missing, max(0.0, give_up - time.monotonic()))
        if not ready:
            raise ProcessError(f"{len(missing)} of {len(pipes)} processes are silent for {seconds:.0f} s")
        for pipe in (each for each in missing if each in ready):
            try:
                found[pipe] = pipe.recv()
            except EOFError:
                raise ProcessError(f"process {pipes.index(pipe)} has ended") from None
            if isinstance(found[pipe], str):
                raise ProcessError(found[pipe])
    return [found[pipe] for pipe in pipes]


def _serve(
    work: Callable[..., None], rank: int, name: str, port: int, pipe: Connection, *arguments: Any
) -> None:
    if name:
        os.environ["CUDA_VISIBLE_DEVICES"] = name
        os.environ["NCCL_HOSTID"] = f"host{rank}"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        work(rank, port, pipe, *arguments)
    except Exception as error:
        pipe.send(f"process {rank}: {type(error).__name__}: {error}")
        raise
    # The others may not be done.
    pipe.poll(None)


def _record_kernels(rank: int, port: int, pipe: Connection, program: str, device: str, bundle: str) -> None:
    """Trains with a plan and sends what the kernels of the last two steps were."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from recycle_runtime.execution.session import StepReport
    from recycle_runtime.transport.nccl import set_environment
    from recycle_runtime.worker.fixed_plan import FixedPlanWorker
    from recycle_runtime.worker.options import WorkerOptions

    if device == "cuda":
        set_environment()
    recorded, place = 2, divmod(rank, STAGES)
    options = WorkerOptions(
        bundle,
        program,
        steps=TRACED_STEPS,
        plan=0,
        worker=place,
        tp_rank=0,
        device=device,
        timeout=60.0,
    )
    dist: Any = torch.distributed
    worker = FixedPlanWorker(options, dist.TCPStore("127.0.0.1", port, is_master=False))
    recorder = profile(activities=[ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU])

    def after(report: StepReport) -> None:
        if report.step == TRACED_STEPS - recorded - 1:
            recorder.start()

    worker.train(after)
    recorder.stop()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        recorder.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    cuda: Any = torch.cuda
    processors = cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 0
    found = kernels_of(events, recorded)
    pipe.send({"worker": f"{place[0]}:{place[1]}", "processors": processors} | found)


def _train_with_torch(rank: int, port: int, pipe: Connection, program: str, device: str) -> None:
    """All schedules one after the other: sends milliseconds of a step in each round, and losses."""
    import torch

    dist: Any = torch.distributed
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(0)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=WORKERS
    )
    pipeline, stage = divmod(rank, STAGES)
    own = [dist.new_group([each * STAGES + s for s in range(STAGES)]) for each in range(PIPELINES)][pipeline]
    peers = [dist.new_group([p * STAGES + each for p in range(PIPELINES)]) for each in range(STAGES)][stage]
    for schedule in SCHEDULES:
        pipe.send(one_schedule(schedule, pipeline, stage, own, peers, program, device))
        if device == "cuda":
            torch.cuda.empty_cache()


def one_schedule(
    schedule: Schedule,
    pipeline: int,
    stage: int,
    own: Any,
    peers: Any,
    path: str,
    device: str,
    shared: Callable[[Any, Any], Any] = lambda optimizer, peers: optimizer,
) -> tuple[list[float], list[float]]:
    """A training loop: schedule, sums over peers, limit of the norm, step.

    `shared` is given the program's optimizer and the group of peers, and may share out its state.
    """
    import torch
    from torch.distributed import pipelining

    from recycle_runtime.data.microbatches import MicroBatches
    from recycle_runtime.execution.chunk import build_module
    from recycle_runtime.program.loading import load_program

    api: Any = torch.nn.utils
    dist: Any = torch.distributed
    place, program, size = torch.device(device), load_program(path), SIZES[device]
    numbers, count = schedule.chunks[stage], sum(map(len, schedule.chunks))
    modules = [build_module(program, number, count, 0).to(place).train() for number in numbers]
    stages = [
        pipelining.PipelineStage(module, number, count, place, group=own)
        for module, number in zip(modules, numbers, strict=True)
    ]
    per_step = PIPELINES * MICROBATCHES

    def loss(output: Any, target: Any) -> torch.Tensor:
        return program.loss(output, target) / per_step

    # What is summed has its share of the mean already: nothing is scaled while sums are under way.
    made: Any = getattr(pipelining, schedule.name)(
        stages[0] if schedule.name == "Schedule1F1B" else stages,
        MICROBATCHES,
        loss_fn=loss,
        scale_grads=False,
    )
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = shared(program.optimizer(parameters), peers)
    buckets = Buckets(parameters, peers)
    first, last = 0 in numbers, count - 1 in numbers
    data = MicroBatches(program, 0, per_step)
    drawn = [_whole_batch(data, step, pipeline, place) for step in range(2)]
    plain = {"return_outputs": False} if "return_outputs" in signature(made.step).parameters else {}
    ends: list[float] = []
    losses: list[torch.Tensor] = []
    for step in range(size.steps):
        inputs, targets = drawn[step % len(drawn)]
        parts: list[torch.Tensor] = []
        buckets.begin()
        arguments = (inputs,) if first else ()
        rest: dict[str, Any] = {"target": targets, "losses": parts} if last else {}
        made.step(*arguments, **plain, **rest)
        buckets.finish()
        squares = api.get_total_norm([parameter.grad for parameter in parameters]) ** 2
        dist.all_reduce(squares, group=own)
        api.clip_grads_with_norm_(parameters, CLIP_NORM, squares.sqrt())
        optimizer.step()
        losses.append(torch.stack(parts).detach().sum() if last else torch.zeros(()))
        if device == "cuda" and step >= LEFT_OUT - 1 and (step - LEFT_OUT + 1) % ROUND == 0:
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
    return rounds_of(ends), [float(each) for each in losses]


def _whole_batch(data: Any, step: int, pipeline: int, place: Any) -> tuple[Any, Any]:
    """All micro-batches of a pipeline in one tensor; the program's come again after two steps."""
    import torch

    items = [data.item(step, pipeline * MICROBATCHES + number) for number in range(MICROBATCHES)]
    inputs, targets = zip(*items, strict=True)
    return torch.cat(inputs).to(place), torch.cat(targets).to(place)


class Buckets:
    """Gradients in a few flat tensors, as DistributedDataParallel has them, last parameters first.

    A bucket is summed over peers when the last micro-batch has added to all of it. Gradients that do not come
    through autograd's accumulation, as those of split backwards, are summed at the end.
    """

    def __init__(self, parameters: Sequence[Any], peers: Any) -> None:
        import torch

        self._peers = peers
        self._flat: list[torch.Tensor] = []
        self._missing: list[int] = []
        for group in grouped(parameters):
            sizes = [parameter.numel() for parameter in group]
            flat = torch.zeros(sum(sizes), device=group[0].device)
            for parameter, end in zip(group, accumulate(sizes), strict=True):
                parameter.grad = flat[end - parameter.numel() : end].view_as(parameter)
                parameter.register_post_accumulate_grad_hook(self._hook(len(self._flat)))
            self._flat.append(flat)
        self._full = [MICROBATCHES * len(group) for group in grouped(parameters)]
        self._works: list[Any] = []

    def begin(self) -> None:
        for flat in self._flat:
            flat.zero_()
        self._missing, self._works = list(self._full), []

    def finish(self) -> None:
        """Sum what is left, and wait."""
        while len(self._works) < len(self._flat):
            self._start_next()
        for work in self._works:
            work.wait()

    def _hook(self, bucket: int) -> Callable[[Any], None]:
        def accumulated(_: Any) -> None:
            self._missing[bucket] -= 1
            # In the same order on all peers.
            while len(self._works) < len(self._flat) and self._missing[len(self._works)] == 0:
                self._start_next()

        return accumulated

    def _start_next(self) -> None:
        import torch

        dist: Any = torch.distributed
        self._works.append(dist.all_reduce(self._flat[len(self._works)], group=self._peers, async_op=True))


def grouped(parameters: Sequence[Any], most: int = BUCKET_BYTES) -> list[list[Any]]:
    """Parameters from the last to the first, in groups of at most so many bytes if they are not single."""
    groups: list[list[Any]] = []
    held = most
    for parameter in reversed(parameters):
        size = parameter.numel() * parameter.element_size()
        if held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(parameter)
        held += size
    return groups


# The tables.


def report(folder: Path) -> None:
    """Plans against predictions, ours beside torch's, and how messages lie under computation."""
    predicted: dict[str, float] = json.loads((folder / "predicted.json").read_text())
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    profile: dict[str, Any] = json.loads((folder / f"profile-{PIPELINES}.json").read_text())
    for key in ("ops_measured", "transfer_measured", "reduce_measured"):
        print(f"{key}: {profile.get(key, 'by itself')}")
    print("\n" + markdown(plan_rows(predicted, found["ours"])))
    print(markdown(torch_rows(found["ours"], found["torch"])))
    print(markdown(_wait_rows(found.get("trace", {}))))
    for row in found.get("kernels", []):
        print(json.dumps(row))
    processors = max((row["processors"] for row in found.get("kernels", [])), default=0)
    print("\n" + markdown(_block_rows(folder, processors or 16)))


def plan_rows(predicted: Mapping[str, float], ours: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each plan that was run; losses are compared with those of the first."""
    rows = [("plan", "workers", "predicted ms", "measured ms", "from-to", "ratio", "losses differ by")]
    expected: list[float] = next((each["losses"] for each in ours.values()), list[float]())
    for plan in PLANS:
        result, workers = ours.get(plan.name), str(WORKERS - len(plan.failed))
        if result is None:
            continue
        if not result["rounds"]:
            rows.append((plan.name, workers, f"{predicted[plan.name]:.1f}", result["error"], "", "", ""))
            continue
        step = median(result["rounds"])
        span = f"{min(result['rounds']):.1f}-{max(result['rounds']):.1f}"
        ratio, off = step / predicted[plan.name], largest_difference(result["losses"], expected)
        times = f"{predicted[plan.name]:.1f}", f"{step:.1f}", span, f"{ratio:.3f}"
        rows.append((plan.name, workers, *times, f"{off:.1e}"))
    return rows


def torch_rows(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each of torch's schedules with ours beside it; losses are compared step for step."""
    rows = [("torch's schedule", "torch's ms", "our plan", "our ms", "ours / torch's", "losses differ by")]
    for schedule in SCHEDULES:
        result, own = theirs.get(schedule.name), ours.get(schedule.beside)
        if result is None or own is None or not own["rounds"]:
            continue
        if not result["rounds"]:
            rows.append((schedule.name, result["error"], schedule.beside, "", "", ""))
            continue
        step, our_step = median(result["rounds"]), median(own["rounds"])
        off = largest_difference(own["losses"], result["losses"])
        rows.append(
            (
                schedule.name,
                f"{step:.1f}",
                schedule.beside,
                f"{our_step:.1f}",
                f"{our_step / step:.3f}",
                f"{off:.1e}",
            )
        )
    return rows


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the losses of the first steps, as a share of them."""
    pairs = zip(ours[:CHECKED_STEPS], theirs[:CHECKED_STEPS], strict=True)
    return max(abs(one - other) / abs(other) for one, other in pairs)


def _wait_rows(trace: Mapping[str, Any]) -> list[tuple[str, ...]]:
    if "error" in trace:
        return [("trace",), (trace["error"],)]
    rows = [("traced worker", "ops ms", "waited ms", "F, B, I beyond the shortest ms")]
    return [*rows, *((worker, *(f"{each:.1f}" for each in row.values())) for worker, row in trace.items())]


def _block_rows(folder: Path, processors: int) -> list[tuple[str, ...]]:
    """Multiprocessors that kernels of NCCL may take on the worker with most channels, of each plan."""
    from recycle_runtime.plan.bundle import Bundle
    from recycle_runtime.transport.nccl import channels_of

    rows = [("plan", "most channels of a worker", "blocks each", f"of {processors} multiprocessors, at most")]
    for number, plan in enumerate(PLANS):
        bundle = Bundle.read(str(folder / f"{number}.plan"))
        channels = max(
            len(channels_of(bundle.stream(0, worker), worker, PIPELINES)) for worker in bundle.workers(0)
        )
        each = blocks(channels, processors)
        rows.append((plan.name, str(channels), str(each), str(channels * each)))
    return rows


def blocks(channels: int, processors: int) -> int:
    """Thread blocks of each channel, as `transport.nccl.join_over_nccl` chooses them."""
    from recycle_runtime.transport import nccl

    most, share = nccl._MOST_BLOCKS, nccl._SHARE  # pyright: ignore[reportPrivateUsage]
    return max(1, min(most, processors // (share * max(1, channels))))


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rest)) + "\n"


@contextmanager
def devices(device: str) -> Generator[list[str]]:
    """Names of six devices; none on a CPU."""
    if device == "cpu":
        yield []
        return
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if len(named) >= WORKERS and all(name.startswith("MIG-") for name in named):
        yield named[:WORKERS]
        return
    from bench.mig import mig_devices

    with mig_devices() as names:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[:WORKERS])
        yield names[:WORKERS]


def _program(folder: Path, device: str) -> Path:
    path = folder / "program.py"
    path.write_text(program_text(SIZES[device].sizes))
    return path


def runtime(*words: str, seconds: float) -> None:
    subprocess.run([sys.executable, "-m", "recycle_runtime.cli", *words], check=True, timeout=seconds)


Work = Callable[[Path, str, Sequence[str]], object]
"""In a folder, on devices of this kind, with what was chosen."""


def command_line(
    about: str,
    works: Mapping[str, Work],
    option: str,
    choices: Sequence[str],
    default: Sequence[str] | None = None,
) -> None:
    """Do one of these works; `option` chooses some of what it is about, without it all, or `default`."""
    parser = argparse.ArgumentParser(description=about.split("\n", 1)[0])
    parser.add_argument("what", choices=tuple(works))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("."))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    usual = choices if default is None else default
    words = f"what to run (default: {' '.join(usual)})"
    parser.add_argument(option, nargs="+", choices=choices, default=usual, dest="chosen", help=words)
    arguments = parser.parse_args()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    works[arguments.what](folder, arguments.device, arguments.chosen)


def main() -> None:
    works: dict[str, Work] = {
        "measure": lambda folder, device, chosen: measure(folder, device),
        "compile": lambda folder, device, chosen: compile_plans(folder),
        "run": run,
        "report": lambda folder, device, chosen: report(folder),
    }
    command_line(__doc__ or "", works, "--parts", PARTS)


if __name__ == "__main__":
    main()
