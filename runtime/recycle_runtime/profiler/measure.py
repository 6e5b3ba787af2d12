"""Builds the stages or layers of a program in turn and measures each, with what the one before it gave."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch

from recycle_runtime.devices import Device
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import LayerOptimizers, LayerUndo, StepOptions, Stepper, Totals
from recycle_runtime.execution.split_backward import Split, prepare
from recycle_runtime.execution.ways import copied_text, reordered_bytes, way_of, ways_text
from recycle_runtime.experts.exchange import Alone
from recycle_runtime.experts.placement import Placement
from recycle_runtime.experts.shared import SharedExperts
from recycle_runtime.profiler.grid_links import grid_links
from recycle_runtime.profiler.halves import Halves
from recycle_runtime.profiler.links import Links, LocalLinks, Receive, TokenRows
from recycle_runtime.profiler.meters import MEMORY_HOW, NOTHING, Stopwatch, Timing, beside_allocator, counting
from recycle_runtime.profiler.passing import Passing, Times, UnlikeTimes, first_kinds
from recycle_runtime.profiler.report import WHOLE_LAYERS, Profile, StageCosts
from recycle_runtime.profiler.stage_run import StageRun, Tensors
from recycle_runtime.program.errors import ProgramError, blame
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import Program
from recycle_runtime.program.second_forward import has_second_forward

_Measured = TypeVar("_Measured")
_WARM_UP_STEPS = 2
_CALM = Totals(0.0, 0.0)
"""A norm that lets every step stand."""


class OptimizerRun:
    """The optimizer of one stage, with its gradients in the place where training has them."""

    def __init__(self, program: Program, name: str, module: torch.nn.Module) -> None:
        layer = Layer(program, 0, name, module)
        self._layer, self._parameters, self._optimizer = layer, layer.parameters, layer.optimizer
        stepped = [] if layer.stepped is None else [layer.stepped]
        self._stepper = Stepper(
            LayerOptimizers(stepped) if stepped else None,
            self._parameters,
            StepOptions(program.clip_norm, program.clip_value),
            undo=LayerUndo(stepped) if stepped else None,
        )

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that are summed over peers."""
        return sum(flat.numel() * flat.element_size() for flat in self._stepper.gradients.buffers)

    @property
    def state_bytes(self) -> int:
        """Parameters, buffers, and what the optimizer and all that moves with it keep."""
        return self._layer.state_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that training holds beside `state_bytes`: gradients, and copies for undoing a step."""
        if self._optimizer is None:
            return 0
        return self._stepper.gradients.bytes_held + self._stepper.undo.bytes_held

    def time(self, watch: Stopwatch, repeat: int) -> Timing:
        """Of a step, with what makes it possible to take it back."""
        if self._optimizer is None:
            return NOTHING
        times = [self._one_step(watch) for _ in range(_WARM_UP_STEPS + repeat)]
        return Timing.of(times[_WARM_UP_STEPS:])

    def _one_step(self, watch: Stopwatch) -> int:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.fill_(1e-3)
        self._stepper.reduce(_nobody_else)
        _, time = watch.time(lambda: self._stepper.step(_nobody_else))
        self._stepper.settle(_CALM)
        return time


def _nobody_else(_: torch.Tensor) -> None:
    """The sum over one worker."""


_WARM_UP = 3
_FEWER = 4
"""Times fewer measurements of each micro-batch, where several are compared."""


@dataclass(frozen=True, slots=True)
class Options:
    """Measurements to make, and their number."""

    stages: int | None
    """None measures every layer by itself."""
    device: str = "cpu"
    repeat: int = 20
    microbatches: int = 16
    """The first of the data, whose times are compared if their shapes are unlike."""
    seed: int = 0
    pipelines: int = 1
    """Number of workers that reduce the gradients of a stage."""
    threads: int = 1
    """Of torch on the CPU; a worker has one."""
    devices: tuple[Device, ...] = ()
    """Those that workers have one each of, the first being this process's; fewer than two are shared."""
    is_crowded: bool = False
    """True if other processes use the device meanwhile, whose memory is counted with this one's."""


def profile(
    program: Program, options: Options, progress: Callable[[str], None] = lambda piece: None
) -> Profile:
    """The costs of every stage or layer on this machine, with the first micro-batches of the program."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ProgramError("there is no CUDA device here that torch can use", "--device cpu measures without")
    threads = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        with warnings.catch_warnings():
            # Torch says so once, about a thread of its own, and goes on as it should.
            warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
            if len(options.devices) < 2:
                return _profile(program, options, LocalLinks(torch.device(options.device)), progress)
            progress(f"links between {len(options.devices)} devices")
            with grid_links(options.device, options.devices, options.stages, options.pipelines) as links:
                return _profile(program, options, links, progress)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stage or a layer."""

    title: str
    name: str
    """Of a layer, as the program calls it."""
    module: torch.nn.Module
    is_first: bool
    is_last: bool


def _pieces(program: Program, options: Options) -> Iterator[_Piece]:
    """Stages are built one after another, layers as the program gives them."""
    if options.stages is not None:
        for stage in range(options.stages):
            module = build_module(program, stage, options.stages, options.seed)
            title = f"stage {stage} of {options.stages}"
            yield _Piece(title, "", module, stage == 0, stage == options.stages - 1)
        return
    if not program.is_layered:
        raise ProgramError(
            f"{program.path}: it gives whole stages, not layers",
            "--stages S measures stages; or define layers() in place of build_stage",
        )
    layers = build_layers(program, options.seed)
    for number, (name, module) in enumerate(layers):
        title = f"layer {number} of {len(layers)} ({name})"
        yield _Piece(title, name, module, number == 0, number == len(layers) - 1)


def _profile(program: Program, options: Options, links: Links, progress: Callable[[str], None]) -> Profile:
    device = torch.device(options.device)
    by_layer = options.stages is None
    kinds = first_kinds(program, options.seed, options.microbatches)
    main, *others = (Passing(program, kind.pair, device) for kind in kinds)
    halves = Halves(program, kinds[0], device) if by_layer else None
    variation = UnlikeTimes(kinds)
    rows: list[StageCosts] = []
    names: list[str] = []
    ways: list[str] = []
    copied: list[int] = []
    for piece in _pieces(program, options):
        progress(piece.title)
        module = piece.module.to(device).train()
        run, *unlike = (
            one.run(module, is_first=piece.is_first, is_last=piece.is_last) for one in (main, *others)
        )
        with blame(program.path, piece.title):
            costs, main.inputs, times = _measure(
                program, piece.name, run, unlike, halves, options, device, links
            )
            for passing, on_piece in zip(others, unlike, strict=True):
                passing.pass_on(on_piece)
        rows.append(variation.averaged(costs, times) if unlike else costs)
        names.append(piece.name)
        ways.append(way_of(module))
        copied += () if piece.is_last else map(reordered_bytes, main.inputs)
    progress("transfers and reductions")
    rows = _with_exchanges(_with_transfers(rows, links, options), links, options)
    return Profile(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        stages=tuple((_share_reduction if by_layer else _with_reductions)(rows, links, options)),
        layer_names=tuple(names) if by_layer else (),
        why_not_split=halves.obstacle if halves else "",
        spread_ppm=variation.spread_ppm,
        details={
            "torch": torch.__version__,
            "threads": options.threads,
            "repeat": options.repeat,
            "seed": options.seed,
            "microbatches": sum(kind.count for kind in kinds),
            "shapes": len(kinds),
            "pipelines": options.pipelines,
            "memory_measured": MEMORY_HOW[device.type],
            "computed": f"{ways_text(ways)}; {copied_text(copied)}",
            **({"whole_layers": WHOLE_LAYERS} if program.has_parallelize else {}),
            **links.how,
            **overhead(device, options),
        },
    )


def overhead(device: torch.device, options: Options) -> dict[str, Any]:
    """Memory of the device that no tensor has, for the profile; nothing where it is not known."""
    if device.type != "cuda" or options.is_crowded:
        return {}
    nccl = "with" if len(options.devices) > 1 else "without"
    return {
        "overhead_bytes": beside_allocator(device),
        "overhead_measured": f"memory in use beside torch's allocator, {nccl} NCCL's buffers",
    }


def _with_transfers(rows: Sequence[StageCosts], links: Links, options: Options) -> list[StageCosts]:
    timings = links.transfers([row.boundary_bytes for row in rows], options.repeat)
    rows = [replace(row, transfer=timing) for row, timing in zip(rows, timings, strict=True)]
    # With a micro-batch a message and a gradient cross each boundary, and take multiprocessors while they do.
    crossing = [2 * timing.median for timing in (NOTHING, *timings)]
    return [row.slowed(before + after) for row, (before, after) in zip(rows, pairwise(crossing), strict=True)]


def _with_exchanges(rows: Sequence[StageCosts], links: Links, options: Options) -> list[StageCosts]:
    exchanges = links.exchanges([row.exchanged for row in rows], options.pipelines, options.repeat)
    slots = links.copies([row.slot_bytes for row in rows], options.pipelines, options.repeat)
    return [
        replace(row, exchange=exchange, slot_transfer=slot)
        for row, exchange, slot in zip(rows, exchanges, slots, strict=True)
    ]


def _with_reductions(rows: Sequence[StageCosts], links: Links, options: Options) -> list[StageCosts]:
    timings = links.reductions([row.gradient_bytes for row in rows], options.pipelines, options.repeat)
    return [replace(row, reduce=timing) for row, timing in zip(rows, timings, strict=True)]


def _share_reduction(rows: Sequence[StageCosts], links: Links, options: Options) -> list[StageCosts]:
    """Layers with the time of one reduction of them all, by their bytes: a stage sums its layers at once.

    Where reductions of several stages can be measured at once, each has its part of the layers.
    """
    everything = sum(row.gradient_bytes for row in rows)
    if not everything:
        return list(rows)
    part = -(-everything // links.rings)
    timings = links.reductions([part] * links.rings, options.pipelines, options.repeat)
    slowest = max(timings, key=lambda timing: timing.median)
    return [replace(row, reduce=slowest.scaled(row.gradient_bytes / part)) for row in rows]


class _RowCounter(Alone):
    """Rows that would go to peers, if none stayed."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self.rows = list[TokenRows]()
        self.kept_bytes = 0
        """Of rows that have come, there and back, which peers keep for a second forward."""

    def exchange(self, rows: torch.Tensor, counts: torch.Tensor, arriving: torch.Tensor | None = None) -> Any:
        come = TokenRows(int(counts.sum()), rows.shape[-1], rows.dtype)
        if arriving is None:
            self.rows.append(come)
        if has_second_forward():
            self.kept_bytes += come.nbytes
        return super().exchange(rows, counts, arriving)


@contextmanager
def _counting_rows(experts: Sequence[SharedExperts]) -> Generator[list[_RowCounter]]:
    """Around a forward."""
    before = [each.exchange for each in experts]
    counters = [_RowCounter(each.exchange.placement) for each in experts]
    for each, counter in zip(experts, counters, strict=True):
        each.exchange = counter
    try:
        yield counters
    finally:
        for each, exchange in zip(experts, before, strict=True):
            each.exchange = exchange


def _measure(
    program: Program,
    name: str,
    run: StageRun,
    unlike: Sequence[StageRun],
    halves: Halves | None,
    options: Options,
    device: torch.device,
    links: Links,
) -> tuple[StageCosts, Tensors, list[Times]]:
    """The costs of a piece, its outputs, and its times in turn with those of unlike micro-batches."""
    optimizer = OptimizerRun(program, name, run.module)
    watch = Stopwatch(device)
    # Fused first: preparing a module for the split changes how it runs.
    by_layer = options.stages is None
    # How many messages the stage of a layer will have is not known.
    receive = None if by_layer else links.waiting_receive(_received_bytes(run))
    backward, slowed_backward = _both(lambda: _fused(run, watch, options.repeat), receive)
    split = prepare(run.module)
    # Now the module is as it trains, in the precision of the program.
    half = None if halves is None else halves.run(run)
    runs = [run] if half is None else [run, half]
    (ops, *in_half), slowed = _both(lambda: _split(runs, split, watch, options.repeat), receive)
    in_turn = _split([run, *unlike], split, watch, -(-options.repeat // _FEWER)) if unlike else []
    forward, backward_input, backward_weight = ops
    saved, kept, handed_on, working = _memory(run, split, device)
    experts = [each for each in run.module.modules() if isinstance(each, SharedExperts)]
    with _counting_rows(experts) as rows:
        outputs = tuple(output.detach() for output in run.forward(run.fresh_inputs()))
    boundary = 0 if run.is_last else _bytes(outputs)
    step = optimizer.time(watch, options.repeat)
    to_copy = optimizer.state_bytes
    costs = StageCosts(
        forward=forward,
        backward_input=backward_input,
        backward_weight=backward_weight,
        backward=backward,
        optimizer=step,
        reduce=NOTHING,
        transfer=NOTHING,
        # What a layer hands to the next one is that one's input, and held once.
        saved_bytes=saved - handed_on if by_layer else saved,
        kept_bytes=kept,
        parameter_bytes=to_copy,
        resident_bytes=to_copy + optimizer.held_bytes + split.bytes_held,
        gradient_bytes=optimizer.gradient_bytes,
        weight_bytes=_bytes([*run.module.parameters(), *run.module.buffers()]),
        expert_bytes=sum(_bytes(each.parameters()) for each in experts),
        slot_bytes=sum(_bytes(each.parameters()) // each.experts for each in experts),
        exchanged=tuple(row for each in rows for row in each.rows),
        arrived_bytes=sum(each.kept_bytes for each in rows),
        boundary_bytes=boundary,
        working_bytes=working,
        half=in_half[0] if in_half else None,
        beside_message=None if slowed is None or slowed_backward is None else (*slowed[0], slowed_backward),
    )
    return costs, outputs, in_turn


def _both(measure: Callable[[], _Measured], receive: Receive | None) -> tuple[_Measured, _Measured | None]:
    """A measurement alone, and beside a receive that waits, if there is one."""
    alone = measure()
    if receive is None:
        return alone, None
    with receive():
        return alone, measure()


def _fused(run: StageRun, watch: Stopwatch, repeat: int) -> Timing:
    def once() -> int:
        outputs = run.forward(run.fresh_inputs())
        gradients = run.gradients(outputs)
        return watch.time(lambda: run.backward(outputs, gradients))[1]

    for _ in range(_WARM_UP):
        once()
    return Timing.of([once() for _ in range(repeat)])


def _split(runs: Sequence[StageRun], split: Split, watch: Stopwatch, repeat: int) -> list[Times]:
    """F, I and W of each of these runs of one module, in turn."""
    for _ in range(_WARM_UP):
        for run in runs:
            _once(run, split, watch)
    times = [[_once(run, split, watch) for run in runs] for _ in range(repeat)]
    found: list[Times] = []
    for of_run in zip(*times, strict=True):
        forwards, firsts, seconds = zip(*of_run, strict=True)
        found.append((Timing.of(forwards), Timing.of(firsts), Timing.of(seconds)))
    return found


def _received_bytes(run: StageRun) -> int:
    """Bytes that a worker of this stage receives for a micro-batch: its input, or its output's gradient."""
    if not run.is_first:
        return _bytes(run.fresh_inputs())
    with torch.no_grad():
        return _bytes(run.forward(run.fresh_inputs()))


def _once(run: StageRun, split: Split, watch: Stopwatch) -> tuple[int, int, int]:
    inputs = run.fresh_inputs()
    outputs, forward = watch.time(lambda: run.forward(inputs))
    gradients = run.gradients(outputs)
    work, first = watch.time(lambda: split.backward_input(outputs, gradients))
    _, second = watch.time(work.run)
    return forward, first, second


def _memory(run: StageRun, split: Split, device: torch.device) -> tuple[int, int, int, int]:
    """Bytes held from F to I, and from I to W; of the former what is handed to the next stage; and the most
    beside these while one of the three runs."""
    most = 0

    def watched(work: Callable[[], _Measured]) -> _Measured:
        nonlocal most
        if device.type != "cuda":
            return work()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        found = work()
        rest = max(before, torch.cuda.memory_allocated(device))
        most = max(most, torch.cuda.max_memory_allocated(device) - rest)
        return found

    with counting(device) as held:
        inputs = run.fresh_inputs()
        outputs = watched(partial(run.forward, inputs))
        saved = held()
        handed_on = 0 if run.is_last else _own_bytes(outputs, inputs)
        work = watched(partial(split.backward_input, outputs, run.gradients(outputs)))
        _send_gradients(inputs)
        del inputs, outputs
        kept = held()
        watched(work.run)
    return saved, kept, handed_on, most


def _send_gradients(inputs: Tensors) -> None:
    """Sent on, and let go of."""
    for tensor in inputs:
        tensor.grad = None


def _own_bytes(outputs: Tensors, inputs: Tensors) -> int:
    """Of outputs that are not inputs passed on."""
    passed_on = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in outputs}
    return sum(size for place, size in storages.items() if place not in passed_on)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
