"""Experts placed by popularity, trained by six workers: 2 stages x 3 pipelines, on GPUs over NCCL or on CPUs.

    python -m bench.experts_grid measure DIR    a profile on the devices, for `compile`; may be left out
    python -m bench.experts_grid compile DIR    one bundle for each placement; needs no GPU
    python -m bench.experts_grid run DIR        trains with each: steps, bytes, and what placing takes
    python -m bench.experts_grid kills DIR      two workers are killed: pauses, and tokens a second
    python -m bench.experts_grid trace DIR      ops and waits with 0, 1, 2 failed
    python -m bench.experts_grid grouped        products in groups against one product for each expert
    python -m bench.experts_grid report DIR     the tables; needs no GPU

GPUs are six MIG devices of one H200: `measure`, `run` and `kills` divide it, as root, unless
CUDA_VISIBLE_DEVICES has the names of six. `--device cpu` does the same with a small model over gloo.
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.measure import RECYCLEC
from bench.nccl_grid import (
    PIPELINES,
    STAGES,
    UNITS,
    WORKERS,
    ProcessError,
    Work,
    answers,
    command_line,
    devices,
    markdown,
    processes,
    runtime,
)

PROGRAMS = Path(__file__).parent / "programs"
SLOTS, MICROBATCHES = 4, 4
PLACED = {"static": 0, "every 10": 10, "every step": 1}
"""Steps after which experts are placed anew."""
LEFT_OUT = 8
"""Steps before those that are measured: there, memory is found, and connections are made."""
FAILED = ("2:1", "1:0")
"""Killed one after the other."""


class Size(NamedTuple):
    """The program that is trained, and for how long."""

    program: str
    steps: int
    """That are measured as they are."""
    taken_apart: int
    """Steps after those, in which the host waits for the device before and after what is measured."""
    between_kills: int
    seconds: float
    """The longest that a run may take."""


SIZES = {
    "cuda": Size("wide_experts.py", 40, 10, 20, 100.0),
    "cpu": Size("sleepy_experts.py", 8, 4, 10, 900.0),
}
JOB = """job experts {{
  parallel  {{ pipeline = {stages}  data = {pipelines} }}
  batch     {{ microbatches = {microbatches} }}
  {costs}
  optimizer {{ state = sharded  owners = 2 }}
  experts   {{ slots = {slots}  every = {every} }}
  tolerate  {{ failures = 2 }}
}}
"""
GUESSED = """profile   {
    unit = ms  forward = 10  backward_input = 10  backward_weight = 10  optimizer = 10  exchange = 10
  }"""


def measure(folder: Path, device: str) -> None:
    """A profile of both stages."""
    with devices(device):
        program = str(PROGRAMS / SIZES[device].program)
        words = ["profile", "--program", program, "--stages", str(STAGES), "--pipelines", str(PIPELINES)]
        profile = str(folder / "profile.json")
        runtime(*words, "--device", device, "-o", profile, seconds=2 * SIZES[device].seconds)


def compile_plans(folder: Path) -> None:
    """A bundle for each placement, with plans for two failures; and how long a step should take with none,
    with one and with both, where ops were measured."""
    profile = folder / "profile.json"
    costs = f'profile from "{profile.name}"' if profile.exists() else GUESSED
    bundle = folder
    for name, every in PLACED.items():
        job, bundle = folder / f"{_file(name)}.job", folder / f"{_file(name)}.plan"
        text = JOB.format(
            stages=STAGES,
            pipelines=PIPELINES,
            microbatches=MICROBATCHES,
            costs=costs,
            slots=SLOTS,
            every=every,
        )
        job.write_text(text, encoding="utf-8")
        subprocess.run([RECYCLEC, "--quiet", "compile", job, "-o", bundle], check=True)
    counts = range(len(FAILED) + 1) if profile.exists() else ()
    # Where experts are has no part in times of ops.
    predicted = [_period(bundle, count) for count in counts]
    (folder / "predicted.json").write_text(json.dumps(predicted))
    print(f"predicted ms of a step: {predicted}" if predicted else "with guessed times of ops")


def _period(bundle: Path, failures: int) -> float:
    """Milliseconds of a step where so many failures lie as the bundle has them: workers move there."""
    command = [RECYCLEC, "show", bundle, "--failures", str(failures), "--format", "json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return float(found["period"]) * UNITS[found["unit"]]


def run(folder: Path, device: str, placed: Sequence[str]) -> None:
    """Train with each placement."""
    path = folder / "run.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    with devices(device) as names:
        for name in placed:
            bundle = str(folder / f"{_file(name)}.plan")
            with processes(_train, names, bundle, device) as pipes:
                try:
                    found[name] = answers(pipes, SIZES[device].seconds)
                except ProcessError as error:
                    raise SystemExit(f"{name}: {error}") from None
            path.write_text(json.dumps(found))
            print(name, " ".join(_row(name, found[name])[1:]), flush=True)


def _train(rank: int, port: int, pipe: Connection, bundle: str, device: str) -> None:
    """One worker: sends what it has counted and measured."""
    import torch

    from recycle_runtime.experts.among_peers import AmongPeers
    from recycle_runtime.plan.bundle import Bundle
    from recycle_runtime.transport.nccl import set_environment
    from recycle_runtime.worker.fixed_plan import FixedPlanWorker, join
    from recycle_runtime.worker.options import WorkerOptions

    size, dist = SIZES[device], torch.distributed
    torch.set_num_threads(1)
    if device == "cuda":
        set_environment()
    options = WorkerOptions(
        bundle,
        str(PROGRAMS / size.program),
        steps=LEFT_OUT + size.steps + size.taken_apart,
        device=device,
        plan=0,
        worker=divmod(rank, STAGES),
        tp_rank=0,
        timeout=size.seconds,
    )
    counted = _Counted(device)
    peers = [worker for worker in Bundle.read(bundle).workers(0) if worker[1] == options.worker[1]]
    store: Any = dist.TCPStore("127.0.0.1", port, is_master=False)  # pyright: ignore
    joined = counted.around(join, peers.index(options.worker), len(peers))
    worker = FixedPlanWorker(options, store, joined)
    ends = [time.perf_counter()]

    def after(report: Any) -> None:
        if device == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
        counted.losses.append(report.loss)
        counted.is_taken_apart = report.step + 1 >= LEFT_OUT + size.steps

    worker.train(after)
    worker.transport.barrier()
    layers = [layer for chunk in worker.chunks.values() for layer in chunk.expert_counts.layers]
    exchanges: list[Any] = [each.exchange for each in layers if isinstance(each.exchange, AmongPeers)]
    steps = [1000 * (later - one) for one, later in pairwise(ends)]
    pipe.send(
        {
            "ms": steps[LEFT_OUT : LEFT_OUT + size.steps],
            "taken apart ms": steps[LEFT_OUT + size.steps :],
            "popularity ms": counted.milliseconds["popularity"],
            "placing ms": counted.milliseconds["placing"],
            "losses": counted.losses,
            "choices": counted.choices,
            "dropped": counted.dropped,
            "rows": sum(each.bytes_given for each in exchanges) / len(steps),
            "weights": (counted.copied - sum(each.bytes_given for each in exchanges)) / len(steps),
            "expert bytes": sum(
                each.nbytes // each.shape[0] * layer.experts
                for layer in layers
                for each in layer.parameters()
            ),
            "peak": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
        }
    )


class _Counted:
    """Work of a worker for its experts, counted and timed by wrappers around methods of the runtime."""

    def __init__(self, device: str) -> None:
        from recycle_runtime.execution.expert_counts import ExpertCounts
        from recycle_runtime.experts.shared import SharedExperts
        from recycle_runtime.state.expert_places import ExpertPlaces

        self._device = device
        self.is_taken_apart = False
        self.milliseconds: dict[str, list[float]] = {"popularity": [], "placing": []}
        self.losses: list[float | None] = []
        self.choices = self.dropped = self.copied = 0
        take, start, place = SharedExperts.take_counts, ExpertCounts.start, ExpertPlaces.place_anew

        def take_counts(layer: Any) -> Any:
            if (taken := take(layer)) is not None:
                self.dropped += int(taken.dropped)
                self.choices += int(taken.popularity.sum())
            return taken

        def timed_start(counts: Any, start_sum: Callable[[Any], Any]) -> None:
            if not counts.layers or not self.is_taken_apart:
                start(counts, start_sum)
                return
            # All peers are here: what is timed is the sum and not the wait for the slowest of them.
            import torch

            pending = start_sum(torch.zeros(1, device=self._device))
            if pending is not None:
                pending.wait()

            def whole() -> None:
                start(counts, start_sum)
                counts.finish()

            self._timed("popularity", whole)

        def timed_place(places: Any, go_on: Callable[[], None]) -> bool:
            return self._timed("placing", lambda: place(places, go_on))

        for owner, name, wrapped in (
            (SharedExperts, "take_counts", take_counts),
            (ExpertCounts, "start", timed_start),
            (ExpertPlaces, "place_anew", timed_place),
        ):
            setattr(owner, name, wrapped)

    def around(self, join: Callable[..., Any], me: int, peers: int) -> Callable[..., Any]:
        """A way to join whose transport counts bytes that this worker gives to peers: rows and weights."""

        def joined(*given: Any) -> Any:
            transport = join(*given)
            start = transport.start_peer_sums

            def counted(chunk: int, sums: Sequence[Any], **options: Any) -> Any:
                for each in sums:
                    if each.sources == (me,):
                        self.copied += each.tensor.nbytes * len(set(each.takers or range(peers)) - {me})
                return start(chunk, sums, **options)

            transport.start_peer_sums = counted
            return transport

        return joined

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        if not self.is_taken_apart:
            return work()
        self._synchronize()
        began = time.perf_counter()
        made = work()
        self._synchronize()
        self.milliseconds[name].append(1000 * (time.perf_counter() - began))
        return made

    def _synchronize(self) -> None:
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()


COLUMNS = (
    "placed",
    "step ms",
    "from-to",
    "popularity ms",
    "placing ms",
    "share",
    "dropped",
    "rows MiB",
    "weights MiB",
    "loss",
)


def _row(name: str, workers: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """A run's: times are those of the slowest worker, bytes those of all together in a step."""
    steps = [max(times) for times in zip(*(each["ms"] for each in workers), strict=True)]
    step = median(steps)
    popularity, placing = (
        max(sum(each[key]) / len(each["taken apart ms"]) for each in workers)
        for key in ("popularity ms", "placing ms")
    )
    last = max(1, len(steps) // 4)
    losses = [loss for each in workers for loss in each["losses"][-last:] if loss is not None]
    rows, weights = (sum(each[key] for each in workers) / (1 << 20) for key in ("rows", "weights"))
    choices, dropped = (sum(each[key] for each in workers) for key in ("choices", "dropped"))
    return (
        name,
        f"{step:.1f}",
        f"{min(steps):.1f}-{max(steps):.1f}",
        f"{popularity:.2f}",
        f"{placing:.2f}",
        f"{100 * (popularity + placing) / step:.2f} %",
        f"{100 * dropped / choices:.1f} %",
        f"{rows:.1f}",
        f"{weights:.1f}",
        f"{sum(losses) / last:.3f}",
    )


def kills(folder: Path, device: str) -> None:
    """Workers are killed one after the other, and nobody returns."""
    from recycle_runtime.launcher.live_view import event_of
    from recycle_runtime.launcher.local import RunOptions, run_local
    from recycle_runtime.protocol.messages.observers import ToObserver
    from recycle_runtime.protocol.messages.steps import StepRow

    size = SIZES[device]
    at = [LEFT_OUT + (number + 1) * size.between_kills for number in range(len(FAILED))]
    steps = LEFT_OUT + (len(FAILED) + 1) * size.between_kills
    ends: list[float] = []
    give_up = time.monotonic() + 2 * size.seconds

    def take(message: ToObserver) -> None:
        if isinstance(message, StepRow):
            ends.append(time.perf_counter())
        elif (words := event_of(message)) is not None:
            print(f"    {words}", flush=True)

    with devices(device):
        options = RunOptions(
            str(folder / f"{_file('every step')}.plan"),
            str(PROGRAMS / size.program),
            steps,
            device=device,
            faults=tuple(f"kill={place}@{step}" for place, step in zip(FAILED, at, strict=True)),
            heartbeat_timeout=20.0,
            first_step_timeout=size.seconds,
        )
        result = run_local(options, take, lambda: "it takes too long" if time.monotonic() > give_up else None)
    assert [row.step for row in result.steps] == list(range(steps)), "steps were skipped or counted twice"
    found = {
        "rows": [
            (end, row.live, row.tokens, row.loss, row.choices, row.dropped)
            for end, row in zip(ends, result.steps, strict=True)
        ],
        "pauses": [
            (row.step, row.detection, row.leaving, row.regroup, row.total, row.repeated)
            for row in result.recoveries
            if row.causes != ("start",)
        ],
    }
    (folder / "kills.json").write_text(json.dumps(found))
    print(_kill_tables(folder))


def _kill_tables(folder: Path) -> str:
    """Pauses, and throughput by how many workers live, beside what plans predict."""
    found = json.loads((folder / "kills.json").read_text())
    predicted: list[float] = json.loads((folder / "predicted.json").read_text())
    pauses = [("step", "detection s", "leaving s", "regroup s", "total s", "made again s")]
    pauses += [(str(step), *(f"{each:.3f}" for each in rest)) for step, *rest in found["pauses"]]
    rates = [("failed", "tokens/s", "share", "live / all", "step ms", "predicted ms", "ratio", "dropped")]
    whole = 0.0
    for failed in range(len(FAILED) + 1):
        rows = [each for each in found["rows"] if each[1] == WORKERS - failed]
        # The first steps with fewer workers make connections and find memory.
        rows = rows[LEFT_OUT:] if not failed else rows[3:]
        seconds = median(later[0] - one[0] for one, later in pairwise(rows))
        rate = rows[-1][2] / seconds
        whole = whole or rate
        choices, dropped = sum(row[4] for row in rows), sum(row[5] for row in rows)
        planned = predicted[failed] if predicted else 0.0
        rates.append(
            (
                str(failed),
                f"{rate:.0f}",
                f"{rate / whole:.3f}",
                f"{(WORKERS - failed) / WORKERS:.3f}",
                f"{1000 * seconds:.1f}",
                f"{planned:.1f}" if planned else "",
                f"{1000 * seconds / planned:.3f}" if planned else "",
                f"{100 * dropped / choices:.1f} %",
            )
        )
    return f"{markdown(pauses)}\n{markdown(rates)}"


TRACED = 12
"""Steps of a traced run; the first half is left out."""


def trace(folder: Path, device: str) -> None:
    """Milliseconds of ops, and of waits before them, by stage and kind."""
    bundle, program = folder / f"{_file('every step')}.plan", PROGRAMS / SIZES[device].program
    with devices(device):
        for failed in range(len(FAILED) + 1):
            path = folder / f"trace-{failed}.json"
            gone = ["--failed", ",".join(FAILED[:failed])] if failed else []
            words = ["local", str(bundle), "--program", str(program), "--steps", str(TRACED), *gone]
            words += ["--device", device, "--trace", str(path), "--restart-workers", "off"]
            runtime("--quiet", *words, seconds=SIZES[device].seconds)
            print(f"{failed} failed\n{markdown(_traced_rows(path))}", flush=True)


def _traced_rows(path: Path) -> list[tuple[str, ...]]:
    events = [each for each in json.loads(path.read_text())["traceEvents"] if each["ph"] == "X"]
    events = [each for each in events if each["args"]["step"] >= TRACED // 2]
    steps = TRACED - TRACED // 2
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    waited: dict[tuple[str, int], float] = {}
    for each in events:
        worker, kind = each["args"]["worker"], each["name"][0]
        track = worker, each["tid"]
        if each["cat"] == "wait":
            waited[track] = each["dur"]
            continue
        found.setdefault((worker.split(":")[1], kind), []).append(
            (each["dur"] / 1000, waited.pop(track, 0.0) / 1000)
        )
    rows: list[tuple[str, ...]] = [
        ("stage", "op", "in a step of all", "ms", "least", "most", "waited ms", "least")
    ]
    for (stage, kind), times in sorted(found.items()):
        own, before = zip(*times, strict=True)
        numbers = (len(times) / steps, median(own), min(own), max(own), median(before), min(before))
        rows.append((stage, kind, *(f"{number:.1f}" for number in numbers)))
    spans: list[float] = []
    for step in range(TRACED // 2, TRACED):
        own = [each for each in events if each["args"]["step"] == step]
        spans.append(max(each["ts"] + each["dur"] for each in own) - min(each["ts"] for each in own))
    rows.append(("all", "step", "1.0", f"{median(spans) / 1000:.1f}", "", "", "", ""))
    return rows


def grouped() -> None:
    """On one GPU, in bf16: that one product for all experts is used, gives what a product for each gives,
    gradients included, and how long both take."""
    import torch

    from recycle_runtime.experts import grouped as module

    experts, width, inner, count = 8, 1024, 4096, 4096
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    weight = (torch.randn(experts, inner, width, device="cuda") / 32).bfloat16().requires_grad_()
    shares = torch.tensor([0.4, 0.2, 0.1, 0.0, 0.1, 0.1, 0.05, 0.05]) * count
    sizes = shares.int()
    counts = sizes.cuda().long()
    total = int(sizes.sum())
    rows = torch.randn(total, width, device="cuda").bfloat16().requires_grad_()
    gradient = torch.randn(total, inner, device="cuda").bfloat16()
    products: list[int] = []
    single: Any = torch._grouped_mm  # pyright: ignore

    def counted(*given: Any, **options: Any) -> Any:
        products.append(1)
        return single(*given, **options)

    def made(exact: bool) -> tuple[Any, ...]:
        groups = module.ExpertRows(counts, None)
        own, own_weight = (
            each.detach().double().requires_grad_() if exact else each.detach().requires_grad_()
            for each in (rows, weight)
        )
        result = module.grouped_linear(own, own_weight, None, groups)
        result.backward(gradient.to(result.dtype))  # pyright: ignore[reportUnknownMemberType]
        return result.detach(), own.grad, own_weight.grad

    torch._grouped_mm = counted  # pyright: ignore
    together = made(False)
    assert products, "no grouped product was used"
    torch._grouped_mm = single  # pyright: ignore
    exact = made(True)
    has, module._has_grouped_product = module._has_grouped_product, lambda *_: False  # pyright: ignore
    apart = made(False)
    seconds = _seconds(lambda: made(False))
    module._has_grouped_product = has  # pyright: ignore
    print(f"grouped products in use: {len(products)} for {experts} experts")
    for name, one, other, truth in zip(("result", "rows", "weight"), together, apart, exact, strict=True):
        off = [float((each.double() - truth).abs().max() / truth.abs().max()) for each in (one, other)]
        print(f"{name}: grouped {off[0]:.1e} of the largest from float64, one for each expert {off[1]:.1e}")
        assert off[0] <= max(2 * off[1], 1e-2), "a grouped product is not what it should be"
    print(
        f"forward and backward: {1e3 * _seconds(lambda: made(False)):.2f} ms grouped, {1e3 * seconds:.2f} ms"
    )


def _seconds(work: Callable[[], Any], times: int = 20) -> float:
    import torch

    work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def report(folder: Path) -> None:
    """Tables of what was found."""
    path = folder / "run.json"
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        print(markdown([COLUMNS, *(_row(name, found[name]) for name in PLACED if name in found)]))
        first = next(iter(found.values()))
        print(f"experts: {sum(each['expert bytes'] for each in first) / PIPELINES / (1 << 20):.0f} MiB")
        print(f"highest use of a device: {max(each['peak'] for each in first) / (1 << 30):.1f} GiB")
        print(f"predicted ms: {(folder / 'predicted.json').read_text()}")
    if (folder / "kills.json").exists():
        print(_kill_tables(folder))


def _file(name: str) -> str:
    return name.replace(" ", "-")


def main() -> None:
    works: dict[str, Work] = {
        "measure": lambda folder, device, chosen: measure(folder, device),
        "compile": lambda folder, device, chosen: compile_plans(folder),
        "run": run,
        "kills": lambda folder, device, chosen: kills(folder, device),
        "trace": lambda folder, device, chosen: trace(folder, device),
        "grouped": lambda folder, device, chosen: grouped(),
        "report": lambda folder, device, chosen: report(folder),
    }
    command_line(__doc__ or "", works, "--placed", tuple(PLACED))


if __name__ == "__main__":
    main()
