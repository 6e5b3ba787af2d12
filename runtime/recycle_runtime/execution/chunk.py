"""Chunks: the parts of a model that a worker process holds, which outlive groups, plans and failures.

A chunk is made of layers. `convert` makes the chunks of one cut of those of another, in the same process:
modules, optimizers and what undoes their last step are moved, not copied.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.device_copies import pinned
from recycle_runtime.execution.expert_counts import ExpertCounts
from recycle_runtime.execution.forward_random import ForwardRandom
from recycle_runtime.execution.kept_buffers import LayerBuffers
from recycle_runtime.execution.layer import Layer, layer_of_ranks
from recycle_runtime.execution.local_tensors import (
    is_distributed,
    local_state,
    take_losses_of_slices,
    whole_number,
)
from recycle_runtime.execution.loss_check import LossCheck
from recycle_runtime.execution.norm_statistics import NormStatistics
from recycle_runtime.execution.optimizer import (
    LayerOptimizers,
    LayerUndo,
    StepOptions,
    Stepper,
    Totals,
)
from recycle_runtime.execution.rank_pieces import are_alike, why_whole
from recycle_runtime.execution.split_backward import Split, prepare
from recycle_runtime.execution.tied import tied_here
from recycle_runtime.execution.ways import way_of, ways_text
from recycle_runtime.experts.shared import SharedExperts
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.program.cutting import Stage
from recycle_runtime.program.host_random import seed_all
from recycle_runtime.program.layers import chunk_layers, filled_stage, layers_of, seed_of
from recycle_runtime.program.loading import Program
from recycle_runtime.program.precision import Precision
from recycle_runtime.program.ties import parameter_called, take_values
from recycle_runtime.protocol.messages.generations import HeldState, LayerShards, Sums
from recycle_runtime.transport.interface import TensorSpec
from recycle_runtime.transport.rank_mesh import mesh

UndoMemory = Literal["device", "host"]
_log = logging.getLogger(__name__)
Graphs = Literal["auto", "on", "off"]
"""CUDA graphs where work can be captured; everywhere, or it is an error; nowhere."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings that all chunks of a process have in common, however the model is cut."""

    program: Program
    seed: int
    device: torch.device
    tp_rank: int = 0
    group: Any = None
    """The process group of the worker's tensor-parallel ranks."""
    recoverable: bool = True
    graphs: Graphs = "off"
    """Mode of capturing its work as CUDA graphs."""
    undo: UndoMemory = "device"
    """Memory that holds the data to undo a step."""
    shards: int = 0
    """Of each layer's optimizer state; 0: it is in one piece."""
    slots: int = 0
    """Of each mixture of experts, those that this process computes; 0: all."""
    ranks: int = 1
    """Number of the job's tensor-parallel ranks that this process stands for, from `tp_rank` on; 0: another
    of its chunks computes for this one."""

    @property
    def undo_on_host(self) -> bool:
        """True if data to undo a step is copied to host memory while the next step is computed."""
        return self.undo == "host"

    def layer(self, number: int, name: str, module: torch.nn.Module) -> Layer:
        module = self.program.parallelize(module.to(self.device), mesh)
        if self.ranks > 1:
            return layer_of_ranks(
                self.program, number, name, module, self.ranks, undo_on_host=self.undo_on_host
            )
        return Layer(
            self.program,
            number,
            name,
            module,
            undo_on_host=self.undo_on_host,
            shards=self.shards,
            slots=self.slots,
            has_ranks=self.group is not None,
        )


class Answers(NamedTuple):
    """Part of a chunk that this process writes, where every byte of a model is written once."""

    for_layers: bool = True
    """All but shards of optimizer state."""
    for_shards: Mapping[int, Sequence[int]] = {}
    """By the number of the layer."""


def _all_here(_: int | None) -> bool:
    """Nothing is on its way."""
    return True


class Chunk:
    """Layers, gradients and data of one chunk, as every worker that holds it has them."""

    beside: "tuple[Chunk, ...]" = ()
    """The same chunk as further ranks have it, for which this process stands too: their state and steps."""
    arrive: Callable[[int | None], bool] = staticmethod(_all_here)
    """Weights that come from the owners of their shards: see `state.ownership.Ownership.arrive`."""

    def __init__(
        self,
        setting: Setting,
        bundle: Bundle,
        number: int,
        layers: Sequence[Layer],
        data: MicroBatches,
    ) -> None:
        self.setting, self.number, self.data = setting, number, data
        self.layers = tuple(layers)
        """In the order of the model; one that stands for all of them where the program gives whole stages."""
        self.count = len(bundle.chunk_stages)
        """Of all chunks of the model."""
        self.tensor = bundle.tensor
        """Tensor-parallel ranks of the job."""
        self.gives_alike: bool | None = None
        """True if all ranks of its worker give the same to the next chunk; None: not seen yet."""
        self.cut: tuple[int, ...] = bundle.cut
        """Number of layers of each chunk; empty if the plan does not say."""
        self.is_fresh = True
        """As built from the seed, and no part of any run yet."""
        self.arriving: dict[str, tuple[TensorSpec, ...]] = {}
        """Tensors from the previous chunk, by the shape of the micro-batch, as far as they are known."""
        self.answers = Answers()
        self.is_shared_out = True
        """False while shards of optimizer state are on their way to their owners."""
        self.is_whole = True
        """False while another's state is on its way here."""
        self.on_settled: Callable[[], None] | None = None
        """Called when the last step stands and nothing of the next one has been used: a time to copy it."""
        self.graphs: dict[Any, Any] = {}
        """Captured graphs of its work, by buffer: see `cuda_graphs`."""
        self.cannot_capture = ""
        """Reason why its work is not captured, once that is known."""
        self.random = ForwardRandom(setting.seed, setting.device)
        self.module: torch.nn.Module
        if setting.ranks == 0:
            self.module = torch.nn.Module()
        elif setting.program.is_layered:
            first = self.layers[0].number if self.layers else 0
            stage = Stage(((layer.name, layer.computing) for layer in self.layers), spread=True, first=first)
            stage.before_layer = self._before_layer
            self.module = stage
        else:
            self.module = self.layers[0].computing
        self._loss_check = LossCheck(setting.program.path, setting.program.loss_function, self.module)
        self.split: Split = prepare(self.module)
        if setting.ranks:
            _log.info("chunk %d has %s", number, ways_text(way_of(layer.computing) for layer in self.layers))
        is_whole = setting.group is not None and bundle.tensor > 1 and not self.has_distributed
        if is_whole and setting.program.has_parallelize:
            _log.warning("chunk %d: parallelize distributes nothing of it, so every rank does all", number)
        self.buffers = LayerBuffers([layer.buffers for layer in self.layers])
        statistics, self.expert_counts = NormStatistics(self.module), ExpertCounts(self.module)
        self.step_counts = [
            *([statistics] if statistics.norms else []),
            *([self.expert_counts] if self.expert_counts.layers else []),
        ]
        """Counted by forwards here and summed over peers, if there is anything."""
        options = StepOptions(
            clip_norm=setting.program.clip_norm,
            clip_value=setting.program.clip_value,
            staggered=_is_staggered(bundle, number),
            recoverable=setting.recoverable,
        )
        stepped = [each for layer in self.layers for each in layer.steppers]
        self.stepper = Stepper(
            LayerOptimizers(stepped),
            [parameter for layer in self.layers for parameter in layer.parameters],
            options,
            tensor_parallel_rank=setting.tp_rank,
            undo=LayerUndo(stepped),
            tied=tied_here(setting.program, bundle, number, self.layers),
            stacked=[each.parameter for layer in self.layers for each in layer.experts.stacked.values()],
        )
        self.beside = tuple(
            Chunk(
                replace(setting, tp_rank=setting.tp_rank + rank, ranks=0),
                bundle,
                number,
                [layer.of_other_ranks[rank - 1] for layer in self.layers],
                data,
            )
            for rank in range(1, setting.ranks)
        )

    @property
    def of_ranks(self) -> "tuple[Chunk, ...]":
        """This one, and the same chunk of every further rank for which this process stands."""
        return (self, *self.beside)

    @cached_property
    def program(self) -> Program:
        return self.setting.program

    @property
    def seed(self) -> int:
        return self.setting.seed

    @property
    def tp_rank(self) -> int:
        return self.setting.tp_rank

    @cached_property
    def is_first(self) -> bool:
        return self.number == 0

    @cached_property
    def is_last(self) -> bool:
        return self.number == self.count - 1

    @property
    def is_part_of_run(self) -> bool:
        """False for one whose worker waits to join."""
        return self.is_whole and not self.is_fresh

    @property
    def has_shards(self) -> bool:
        """True if optimizer state is in shards, of which this process owns some or none."""
        return any(layer.shards for layer in self.layers)

    @property
    def has_distributed(self) -> bool:
        """True if parameters of it are DTensors."""
        return any(layer.has_distributed for layer in self.layers)

    @property
    def applied(self) -> int:
        """Steps that the parameters have seen."""
        return self.stepper.progress.steps

    def expect_state(self) -> None:
        """That of another is on its way here, and what is here is of no use."""
        self.is_whole = False
        for layer in self.layers:
            if layer.shards:
                layer.own_nothing()

    @property
    def why_all_ranks(self) -> str:
        """Reason why its worker cannot go on with fewer ranks; empty if it can, as far as is known."""
        if self.program.has_movers:
            return "averages of weights move with its steps"
        if self.has_shards:
            return "its optimizer state is in shards"
        if self.gives_alike is False:
            return f"each rank gives a part of its own from chunk {self.number} to the next"
        for layer in self.layers:
            if why := why_whole(dict(layer.computing.named_parameters()), self.tensor):
                return f"of {layer.title}, {why}"
        if not all(layer.steps_views for layer in self.layers):
            return "its optimizer does not step parts of tensors as it steps whole ones (fused=True)"
        return ""

    def compare_ranks(self, outputs: Sequence[torch.Tensor]) -> None:
        """See whether all ranks give the same, of a first micro-batch; where it matters, all of them do this
        together."""
        if not self.program.ranks or self.gives_alike is not None or self.setting.group is None:
            return
        self.gives_alike = are_alike(outputs, self.setting.group)
        if why := self.why_all_ranks:
            _log.warning("RANKS has no effect: a worker that has lost a rank is given up, for %s", why)

    def report(self) -> HeldState:
        """State that this process can offer when the survivors agree on a step to continue from."""
        if not self.is_whole:
            return HeldState(None, is_fresh=False)
        known = self.stepper.totals
        own = self.stepper.unsettled
        return HeldState(
            self.applied,
            self.is_fresh,
            None if known is None else Sums(*known),
            self.applied - (own is not None),
            None if own is None else Sums(*own),
            can_go_forward=self.stepper.waits_with_sums,
            shards=self.shards,
        )

    @property
    def shards(self) -> tuple[LayerShards, ...]:
        """Of each layer whose optimizer state is in shards, those that are here."""
        return tuple(
            LayerShards(layer.number, len(layer.shards), tuple(sorted(layer.shards_here)))
            for layer in self.layers
            if layer.shards
        )

    def settled(self) -> None:
        """The state is that after `applied` steps, whatever has been computed of the next one."""
        if self.on_settled is not None:
            self.on_settled()

    def stand(self, step: int, sums: Sums | None) -> None:
        """Go to where `step` begins, with the verdict on the step before it; gradients are dropped.

        One step forward, if others have made it with gradients that are here too; or one step back.
        """
        if self.applied == step - 1 and not self.is_fresh:
            assert sums is not None, "no worker knows the norm of the step to be made"
            self.stepper.go_forward(Totals(*sums))
        elif self.applied == step + 1:
            self.stepper.rollback()
            self.know(sums)
        else:
            if self.stepper.unsettled is not None:
                assert sums is not None, "no worker knows the verdict on the last step"
                self.stepper.settle(Totals(*sums))
            self.stepper.discard()
        assert self.applied == step, f"this worker stands at step {self.applied}, not {step}"
        self.buffers.go_back(step)
        self.is_fresh = False

    def know(self, sums: Sums | None) -> None:
        """Keep the verdict on the last step, for workers that may still lack it after the next failure."""
        if sums is not None:
            self.stepper.totals = Totals(*sums)

    def forward(self, inputs: Sequence[torch.Tensor], step: int, index: int) -> Any:
        """Of one micro-batch, by its number among all of the step."""
        self.random.begin(step, index)
        program, is_layered = self.program, self.program.is_layered
        if self.is_first and program.precision is not Precision.AS_BUILT:
            inputs = [program.precision.entering(tensor) for tensor in inputs]
        if not is_layered or self.count == 1:
            # Nobody has looked at which parameters the code around the layers of a whole model uses.
            self.arrive(None)
        if not is_layered:
            self.random.enter(self.number)
            return self._compute(self.module, *inputs)
        return self._compute(self.module, *map(as_computed, inputs))

    def _before_layer(self, number: int) -> None:
        self.arrive(number)
        self.random.enter(number)

    def _compute(self, code: Callable[..., Any], *arguments: Any) -> Any:
        """Call the user's code, in the precision that it asks for."""
        if self.program.precision is Precision.AS_BUILT:
            return self.split.compute(code, *arguments)
        with self.program.precision.computing(self.setting.device):
            return self.split.compute(code, *arguments)

    @cached_property
    def routers(self) -> list[tuple[str, SharedExperts]]:
        """Experts of every mixture, and the mixture's name in the model."""
        return [
            (f"{layer.title}.{name}".removesuffix(".").removesuffix(".experts"), each)
            for layer in self.layers
            for name, each in layer.computing.named_modules()
            if isinstance(each, SharedExperts)
        ]

    def serve(self) -> tuple[torch.Tensor, ...]:
        """Take part in a forward of the peers without a micro-batch: what its mixtures of experts give, in
        their order."""
        self.arrive(None)
        with self.program.precision.computing(self.setting.device):
            return tuple(layer.serve() for layer in self.expert_counts.layers)

    @property
    def drawn_from(self) -> list[int]:
        """Numbers of layers that may draw random numbers; that of the chunk, where it is one whole stage."""
        return [layer.number for layer in self.layers] if self.program.is_layered else [self.number]

    def loss(self, output: Any, target: Any) -> torch.Tensor:
        """Of one micro-batch."""
        if not self._loss_check.is_over:
            return self._loss_check.call(lambda: self._loss(output, target))
        return self._loss(output, target)

    def _loss(self, output: Any, target: Any) -> torch.Tensor:
        several: Any = output if isinstance(output, tuple | list) else (output,)
        if any(map(is_distributed, several)):
            take_losses_of_slices()
        return whole_number(self._compute(self.program.loss, output, target))

    def data_position(self) -> dict[str, Any] | None:
        """Position of a stream of data between these steps, for a worker that goes on from here; None where
        nothing is drawn, or any micro-batch can be drawn at once."""
        if not (self.is_first or self.is_last):
            return None
        position = self.data.position(self.applied)
        return None if position is None else {"step": self.applied, "at": position}

    def take_data_position(self, told: dict[str, Any] | None) -> None:
        """Draw on from where another stood."""
        if told is not None:
            self.data.go_to(told["step"], told["at"])

    def module_state(self) -> dict[str, Any]:
        """Parameters and buffers of this rank, as its module has them."""
        if self.setting.ranks == 1:
            return local_state(self.module)
        return {
            f"{layer.name}.{name}" if layer.name else name: value
            for layer in self.layers
            for name, value in layer.module.state_dict().items()
        }

    @property
    def state_bytes(self) -> int:
        """About how many bytes a peer sends: all but shards of optimizer state."""
        return sum(layer.state_bytes for layer in self.layers)


def build_chunks(
    program: Program,
    bundle: Bundle,
    stage: int,
    seed: int,
    device: torch.device,
    *,
    tp_rank: int = 0,
    ranks: int = 1,
    group: Any = None,
    recoverable: bool = True,
    per_step: int | None = None,
    graphs: Graphs = "off",
    undo: UndoMemory = "device",
    shards: int | None = None,
) -> dict[int, Chunk]:
    """Those that a worker of this stage holds, by number, in the order of the model.

    `per_step` are the micro-batches of a step where the plans of the bundle may split them, `shards` those of
    optimizer state where the bundle is a re-cut: as many as the job has pipelines. This process stands for so
    many `ranks`, the first of which is `tp_rank`.
    """
    count = bundle.pipelines if shards is None else shards
    shards = count if bundle.owners else 0
    slots = bundle.slots
    setting = Setting(program, seed, device, tp_rank, group, recoverable, graphs, undo, shards, slots, ranks)
    numbers = chunks_of(bundle, stage)
    count = bundle.pipelines * bundle.microbatches if per_step is None else per_step
    data = MicroBatches(program, seed, count, ready=lambda item: pinned(item, device))
    return {
        number: Chunk(setting, bundle, number, _layers(setting, bundle, number), data) for number in numbers
    }


class LayersMissingError(RuntimeError):
    """A process does not hold what a cut asks of it."""


def convert(
    held: Iterable[Chunk], bundle: Bundle, stage: int, received: Iterable[Layer] = ()
) -> dict[int, Chunk]:
    """The chunks of a worker of this stage under the cut of a bundle, made of layers that are held here.

    All stand at the same step, and so do layers that were received for it. The chunks given are of no use
    afterwards, and layers that the stage does not need go with them; LayersMissingError, and nothing has
    changed, if some are not here.
    """
    before = [chunk for chunk in held if chunk.is_whole]
    layers = {layer.number: layer for layer in received}
    layers |= {layer.number: layer for chunk in before for layer in chunk.layers}
    numbers = chunks_of(bundle, stage)
    ranges = layers_of(bundle.cut)
    if missing := [layer for number in numbers for layer in ranges[number] if layer not in layers]:
        raise LayersMissingError(f"layers {missing} are not here")
    assert len({chunk.stepper.progress for chunk in before}) == 1, "these chunks stand at different steps"
    last = next((chunk for chunk in before if chunk.stepper.totals is not None), before[0])
    arriving = {chunk.layers[0].number: chunk.arriving for chunk in before if chunk.layers}
    for chunk in before:
        chunk.split.remove()
        chunk.stepper.gradients.release()
    made: dict[int, Chunk] = {}
    for number in numbers:
        here = [layers[layer] for layer in ranges[number]]
        chunk = type(last)(last.setting, bundle, number, here, last.data)
        chunk.stepper.carry_on(last.stepper)
        chunk.arriving = arriving.get(ranges[number].start, {})
        chunk.is_fresh = last.is_fresh
        made[number] = chunk
    return made


def chunks_of(bundle: Bundle, stage: int) -> list[int]:
    """The numbers of the chunks that workers of a stage hold."""
    return list(bundle.held(stage))


def build_module(
    program: Program, chunk: int, chunks: int, seed: int, group: Any = None, cut: Sequence[int] = ()
) -> torch.nn.Module:
    """A chunk as every worker that holds it starts: the same numbers on each of them."""
    if not program.is_layered:
        seed_all(seed_of(seed, chunk))
        return filled_stage(program, program.build_stage(chunk, chunks, group))
    numbered = chunk_layers(program, cut, chunk, chunks, seed, group)
    return Stage((layer for _, layer in numbered), spread=True, first=numbered[0][0])


class _Same(torch.autograd.Function):
    """Identity that makes a received tensor a node of this process's autograd graph."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def as_computed(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory; a layer may change it in place at the beginning of a chunk as it may within one."""
    same: Callable[[torch.Tensor], torch.Tensor] = _Same.apply  # pyright: ignore[reportUnknownMemberType]
    return same(tensor) if tensor.requires_grad else tensor


def _layers(setting: Setting, bundle: Bundle, number: int) -> list[Layer]:
    program, count = setting.program, len(bundle.chunk_stages)
    if not program.is_layered:
        module = build_module(program, number, count, setting.seed, setting.group)
        _begin_as_first(setting, bundle, number, module)
        return [setting.layer(number, "", module)]
    named = chunk_layers(program, bundle.cut, number, count, setting.seed, setting.group)
    made = [setting.layer(layer, name, module) for layer, (name, module) in named]
    if odd := next((layer for layer in made if layer.why_whole), None):
        _log.warning(
            "every worker of chunk %d has its whole optimizer state, not shards: of the optimizer of %s, %s",
            number,
            odd.title,
            odd.why_whole,
        )
        for layer in made:
            layer.make_whole()
    return made


def _begin_as_first(setting: Setting, bundle: Bundle, number: int, module: torch.nn.Module) -> None:
    """Copies of tied parameters in a whole stage begin with the numbers of the first one."""
    program, here = setting.program, [("", module)]
    copies = [
        (names, one)
        for names in program.ties
        for name in names[1:]
        if (one := parameter_called(here, name)) is not None
    ]
    missing = {names[0] for names, _ in copies if parameter_called(here, names[0]) is None}
    for chunk in bundle.tied_chunks if missing else ():
        built = build_module(program, chunk, len(bundle.chunk_stages), setting.seed, setting.group)
        here.append(("", built))
    for names, one in copies:
        if (first := parameter_called(here, names[0])) is not None:
            take_values(program.path, names, one, first)


def _is_staggered(bundle: Bundle, chunk: int) -> bool:
    """True if the plans step before the norm is known; all plans of a job do, or none."""
    stages = bundle.holders[chunk]
    worker = next(worker for worker in bundle.workers(0) if worker[1] in stages)
    return any(instruction.opcode is Opcode.VALIDATE for instruction in bundle.stream(0, worker))
