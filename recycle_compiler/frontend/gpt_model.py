"""The `model` and `device` blocks: analytic costs of a GPT on a known GPU, derived in docs/cost-model.md.

All arithmetic is on integers: bytes and operations are exact, times are rounded up to nanoseconds once.
"""

from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.check import Section, Sections
from recycle_compiler.frontend.costs import STEADY, ChunkCosts, Cut
from recycle_compiler.frontend.diagnostics import Mistakes, any_of, did_you_mean, quantity, quote
from recycle_compiler.frontend.optimizer_state import StateRules
from recycle_compiler.frontend.profile_file import DISPLAY_UNIT
from recycle_compiler.frontend.schema import REQUIRED_SETTINGS
from recycle_compiler.frontend.shape import GivenShape
from recycle_compiler.frontend.values import LARGEST, Decimal, Over, read_amounts, read_share, read_whole
from recycle_compiler.ir.layers import PER_LAYER, LayerCosts
from recycle_compiler.ir.state import (
    GRADIENT_BYTES,
    WEIGHT_BYTES,
    bytes_of_all,
    bytes_of_shards,
    copied_bytes,
)

DEFAULT_EFFICIENCY_PPM = 450_000
"""Share of the peak that large matrix products reach in training, in millionths."""
DEFAULT_OVERHEAD = 3 << 29
"""Bytes that the CUDA context and the buffers of NCCL take."""
MESSAGES = 4
"""Between stages, that a worker has room for: two activations and two gradients."""
_OPTIMIZER_TRAFFIC = 30
"""Read gradient 4, read and write master weight and moments 24, write the bf16 weight 2."""
_HALF = 2
"""Bytes of a bf16 number."""
_LEAST_EFFICIENCY_PPM = 10_000
MOST_LAYERS = 1 << 16
MOST_EXPERTS = 1 << 16
_LARGEST_SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class GpuKind:
    """One GPU in its usual server; rates per second, links per GPU and direction."""

    name: str
    peak_flops: int
    """Dense bf16 tensor-core operations."""
    memory_bandwidth: int
    """Bytes of HBM."""
    node_bandwidth: int
    """Bytes over NVLink, between GPUs of one server: tensor parallelism."""
    network_bandwidth: int
    """Bytes over the network card: between stages and between pipelines."""


DEVICES = {
    device.name: device
    for device in (
        GpuKind("a100", 312 * 10**12, 2_039 * 10**9, 300 * 10**9, 25 * 10**9),
        GpuKind("h100", 989 * 10**12, 3_350 * 10**9, 450 * 10**9, 50 * 10**9),
        GpuKind("h200", 989 * 10**12, 4_800 * 10**9, 450 * 10**9, 50 * 10**9),
    )
}


@dataclass(frozen=True, slots=True)
class GptModel:
    """A GPT as its papers describe it: pre-norm layers with a 4x wider MLP, learned positions."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    experts: int = 0
    """Of each layer, each an MLP of the same shape; 0: one MLP for all tokens."""
    active: int = 1
    """Experts that each token goes to."""
    imbalance_ppm: int = 0
    """Tokens of the busiest worker's experts beyond the mean, in millionths of it."""

    def layer_parameters(self, experts: int | None = None) -> int:
        """Four attention and eight MLP matrices of hidden x hidden, their biases, two norms; the MLP once for
        each of so many experts (None: all), with a router."""
        mlp = 8 * self.hidden**2 + 5 * self.hidden
        router = self.experts * self.hidden
        copies = (self.experts if experts is None else experts) if self.experts else 1
        return 4 * self.hidden**2 + 8 * self.hidden + router + copies * mlp

    def routed(self, amount: int) -> int:
        """An amount for each token in an MLP, for all experts of a token, on the busiest worker."""
        return amount if not self.experts else _scaled(amount * self.active, 1_000_000 + self.imbalance_ppm)

    def embedding_parameters(self) -> int:
        """Token and position embeddings, on the first stage."""
        return (self.vocabulary + self.sequence) * self.hidden

    def head_parameters(self) -> int:
        """Final norm and output matrix, on the last stage; not tied to the embedding."""
        return (self.vocabulary + 2) * self.hidden

    def parameters(self) -> int:
        return self.layers * self.layer_parameters() + self.embedding_parameters() + self.head_parameters()

    def layers_per_stage(self, stages: int) -> tuple[int, ...]:
        """Even; what is left over goes to the stages before the last, the latest first.

        The last stage has the head already, and early stages hold most activations.
        """
        each, rest = divmod(self.layers, stages)
        return tuple(each + (stages - 1 - rest <= stage < stages - 1) for stage in range(stages))

    def usual_cut(self, stages: int) -> Cut:
        """The same with the embedding and the head, which are layers of their own."""
        return tuple(
            layers + (stage == 0) + (stage == stages - 1)
            for stage, layers in enumerate(self.layers_per_stage(stages))
        )


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of one micro-batch on one stage, over all its tensor ranks."""

    forward: int
    backward_input: int
    backward_weight: int


_PLAIN = StateRules(0, staggered=True)


@dataclass(frozen=True, slots=True)
class ModelRun:
    """Setting in which a model is run: everything its costs depend on besides the model itself."""

    stages: int
    pipelines: int
    tensor: int
    micro: int
    """Sequences in a micro-batch."""
    device: GpuKind
    efficiency_ppm: int
    state: StateRules = _PLAIN
    overhead: int = DEFAULT_OVERHEAD


@dataclass(frozen=True, slots=True)
class EstimatedCosts:
    """Costs of one stage: nanoseconds, and bytes on each GPU."""

    forward: int
    backward_input: int
    backward_weight: int
    optimizer: int
    """Of all shards, where the state is sharded."""
    reduce: int
    gather: int
    transfer: int
    activation: int
    kept_for_weight: int
    parameters: int
    resident: int
    state: int
    counts: int
    exchange: int
    """Part of `forward` and of `backward_input`."""
    state_counts: int
    expert_counts: int


def stage_work(model: GptModel, run: ModelRun) -> tuple[Work, ...]:
    """Operations of each stage of the usual cut."""
    return tuple(_work(model, run, part) for part in _parts(model, model.usual_cut(run.stages)))


def estimate_stages(model: GptModel, run: ModelRun, cut: Cut | None = None) -> tuple[EstimatedCosts, ...]:
    """Times and bytes of each stage of a cut, or of the usual one; each is rounded once."""
    return tuple(_part_costs(model, run, part) for part in _parts(model, cut or model.usual_cut(run.stages)))


def layer_costs(model: GptModel, run: ModelRun) -> LayerCosts:
    """Times and bytes of each layer: the embedding, the transformer layers, the head."""
    embedding, block, head = (_layer(model, run, part) for part in (_EMBEDDING, _BLOCK, _HEAD))
    rows = (embedding, *(block,) * model.layers, head)
    columns: dict[str, tuple[int, ...]] = {
        name: tuple(getattr(row, name) for row in rows) for name in EstimatedCosts.__slots__
    }
    columns["transfer"] = columns["transfer"][:-1]
    return LayerCosts(capacity=None, **columns)


_OF_EXPERTS = ("exchange", "state_counts", "expert_counts")
"""Numbers that only a job with experts has."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some consecutive layers: how many transformer layers, and which of the ends."""

    blocks: int
    has_embedding: bool = False
    has_head: bool = False


_EMBEDDING, _BLOCK, _HEAD = _Part(0, has_embedding=True), _Part(1), _Part(0, has_head=True)


def _parts(model: GptModel, cut: Cut) -> tuple[_Part, ...]:
    """Part of the model on each stage."""
    last = model.layers + 1
    return tuple(
        _Part(end - first - (first == 0) - (end == last + 1), first == 0, end == last + 1)
        for first, end in pairwise(accumulate(cut, initial=0))
    )


def _work(model: GptModel, run: ModelRun, part: _Part) -> Work:
    tokens = run.micro * model.sequence
    square = tokens * model.hidden**2
    matrices = 8 * square + model.routed(16 * square) + 2 * tokens * model.hidden * model.experts
    # Scores and their use: two products in forward, four in backward, one redone by flash attention.
    attention = 2 * tokens * model.sequence * model.hidden
    head = 2 * tokens * model.hidden * model.vocabulary * part.has_head
    return Work(
        forward=part.blocks * (matrices + 2 * attention) + head,
        backward_input=part.blocks * (matrices + 5 * attention) + head,
        backward_weight=part.blocks * matrices + head,
    )


def _layer(model: GptModel, run: ModelRun, part: _Part) -> EstimatedCosts:
    """One layer; very many workers sum its gradients, gather its weights and exchange its tokens."""
    parameters = _parameters(model, run, part, run.state.slots)
    sent = GRADIENT_BYTES * parameters * (1 if run.state.owners else 2)
    reduce = _divide(sent * 10**9, run.device.network_bandwidth)
    gather = _divide(WEIGHT_BYTES * parameters * 10**9, run.device.network_bandwidth) * (run.state.owners > 0)
    made = _part_costs(model, run, part)
    return replace(
        made,
        forward=made.forward - made.exchange,
        backward_input=made.backward_input - made.exchange,
        reduce=reduce,
        gather=gather,
        exchange=_divide(_exchanged(model, run, part) * 10**9, run.device.network_bandwidth * run.tensor),
        state_counts=made.state_counts if model.experts else 0,
    )


def _parameters(model: GptModel, run: ModelRun, part: _Part, experts: int | None = None) -> int:
    """On one tensor rank, with so many experts in each layer; None is all."""
    parameters = part.blocks * model.layer_parameters(experts)
    parameters += model.embedding_parameters() * part.has_embedding + model.head_parameters() * part.has_head
    return _divide(parameters, run.tensor)


def _part_costs(model: GptModel, run: ModelRun, part: _Part) -> EstimatedCosts:
    device, tensor = run.device, run.tensor
    tokens = run.micro * model.sequence
    message = _HALF * tokens * model.hidden
    """The activation between two layers, in bytes."""

    # Two collectives a layer in either direction; the embedding and the head add one each.
    forward_link = _all_reduce(message, tensor, device.node_bandwidth) * (
        2 * part.blocks + part.has_embedding
    )
    backward_link = _all_reduce(message, tensor, device.node_bandwidth) * (2 * part.blocks + part.has_head)
    # A look-up computes nothing: rows are read and written, and their gradients added up.
    lookup = _divide(2 * message * 10**9, device.memory_bandwidth * tensor) * part.has_embedding

    work = _work(model, run, part)
    kept = _divide(_kept(model, run, part), tensor)
    parameters, held = _parameters(model, run, part), _parameters(model, run, part, run.state.slots)
    exchange = _exchange(model, run, part)
    shared = bytes_of_shards(staggered=run.state.staggered) * (run.state.owners > 0)
    return EstimatedCosts(
        forward=_compute(work.forward, run) + forward_link + lookup + exchange,
        # The embedding has no input gradient, but where it is a stage of its own that has the op.
        backward_input=max(1, _compute(work.backward_input, run) + backward_link + exchange),
        backward_weight=_compute(work.backward_weight, run) + lookup,
        optimizer=_divide(_OPTIMIZER_TRAFFIC * parameters * 10**9, device.memory_bandwidth),
        reduce=_reduce(held, run),
        gather=_gather(held, run),
        transfer=_divide(message * 10**9, device.network_bandwidth * tensor),
        # The embedding keeps more for W than it holds before I; any other layer has room for that.
        activation=max(kept, _divide(_activation(model, run, part), tensor)),
        kept_for_weight=kept,
        parameters=copied_bytes(parameters, run.state.owners, run.pipelines)
        - WEIGHT_BYTES * (parameters - held),
        resident=bytes_of_all(staggered=run.state.staggered, sharded=run.state.owners > 0) * held,
        state=shared * parameters,
        counts=held,
        exchange=exchange,
        state_counts=parameters,
        expert_counts=model.experts if part.blocks else 0,
    )


def _exchange(model: GptModel, run: ModelRun, part: _Part) -> int:
    """Nanoseconds in which the tokens of a micro-batch go to their experts and come back, on the busiest
    worker: all but one part in as many as there are peers."""
    away = _exchanged(model, run, part) * (run.pipelines - 1) * 10**9
    return _divide(away, run.pipelines * run.device.network_bandwidth * run.tensor)


def _exchanged(model: GptModel, run: ModelRun, part: _Part) -> int:
    """Bytes of the tokens of a micro-batch, to their experts and back."""
    if not model.experts:
        return 0
    return 2 * model.routed(_HALF * run.micro * model.sequence * model.hidden) * part.blocks


def _reduce(parameters: int, run: ModelRun) -> int:
    """Nanoseconds of the sum of gradients: for all workers, or each shard for its owners."""
    size, ranks, bandwidth = GRADIENT_BYTES * parameters, run.pipelines, run.device.network_bandwidth
    if not run.state.owners:
        return _all_reduce(size, ranks, bandwidth)
    further = min(run.state.owners, ranks) - 1
    return _divide((ranks - 1 + further) * size * 10**9, ranks * bandwidth)


def _gather(parameters: int, run: ModelRun) -> int:
    """Nanoseconds that the weights of all shards take to every worker; none where all have all."""
    sent = (run.pipelines - 1) * WEIGHT_BYTES * parameters * (run.state.owners > 0)
    return _divide(sent * 10**9, run.pipelines * run.device.network_bandwidth)


def _activation(model: GptModel, run: ModelRun, part: _Part) -> int:
    """Bytes held from the start of F, over all tensor ranks."""
    tokens = run.micro * model.sequence
    layer = tokens * (16 * model.hidden + 4 * model.heads + 4 * model.experts)
    layer += model.routed(18 * tokens * model.hidden)
    embedding = tokens * model.hidden
    head = tokens * 4 * (model.hidden + model.vocabulary)
    return part.blocks * layer + embedding * part.has_embedding + head * part.has_head


def _kept(model: GptModel, run: ModelRun, part: _Part) -> int:
    """Bytes that W needs: the inputs of each matrix product (14) and the gradients of its outputs (18)."""
    tokens = run.micro * model.sequence
    embedding = 2 * tokens * model.hidden
    head = tokens * 2 * (model.hidden + model.vocabulary)
    layer = 12 * tokens * model.hidden + model.routed(20 * tokens * model.hidden)
    return part.blocks * layer + embedding * part.has_embedding + head * part.has_head


def _compute(operations: int, run: ModelRun) -> int:
    rate = run.device.peak_flops * run.efficiency_ppm * run.tensor
    return _divide(operations * 10**9 * 10**6, rate)


def _all_reduce(size: int, ranks: int, bandwidth: int) -> int:
    """Nanoseconds of a ring: each rank sends 2 (ranks - 1) / ranks of the bytes."""
    return _divide(2 * (ranks - 1) * size * 10**9, ranks * bandwidth)


def _scaled(amount: int, ppm: int) -> int:
    return _divide(amount * ppm, 1_000_000)


def _divide(amount: int, by: int) -> int:
    """Rounded up."""
    return -(-amount // by)


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """The layers of a model on a device; stages are computed as a whole, not summed."""

    model: GptModel
    run: ModelRun
    span: Span = field(compare=False)
    unit: str = DISPLAY_UNIT
    memory_unit: str = "byte"

    @property
    def costs(self) -> LayerCosts:
        return layer_costs(self.model, self.run)

    @property
    def overhead(self) -> int:
        run = self.run
        message = _divide(_HALF * run.micro * self.model.sequence * self.model.hidden, run.tensor)
        return run.overhead + MESSAGES * message

    def usual_cut(self, stages: int) -> Cut | None:
        return self.model.usual_cut(stages) if self.model.layers >= stages else None

    def stage_costs(self, cut: Cut, pipelines: int) -> ChunkCosts:
        stages = estimate_stages(self.model, replace(self.run, pipelines=pipelines), cut)
        columns: dict[str, tuple[int, ...]] = {
            name: tuple(getattr(stage, name) for stage in stages) for name in EstimatedCosts.__slots__
        }
        columns["transfer"] = columns["transfer"][:-1]
        if not self.model.experts:
            columns |= dict.fromkeys(_OF_EXPERTS, ())
        return ChunkCosts(
            unit=self.unit, memory_unit=self.memory_unit, span=self.span, variation=STEADY, **columns
        )


def tie_time(layers: ModelLayers) -> int:
    """Extra time of summing the gradient of the token embedding over twice as many workers, those with the
    embedding and those with the head."""
    model, run = layers.model, layers.run
    size = _divide(GRADIENT_BYTES * model.vocabulary * model.hidden, run.tensor)
    both, one = (
        _all_reduce(size, ranks, run.device.network_bandwidth) for ranks in (2 * run.pipelines, run.pipelines)
    )
    return both - one


def read_model(
    section: Section, sections: Sections, shape: GivenShape, state: StateRules, report: Mistakes
) -> ModelLayers | None:
    """The layers of a model on a device."""
    variant = section.block.variant
    if variant is None or variant.text != "gpt":
        name = variant or section.block.head
        message = f"model must be `gpt`, got {quote(name.text)}"
        report.error("unknown-model", message, name.span, "measure a profile for any other model")
        return None
    sizes = {key: _size(section, key, report) for key in REQUIRED_SETTINGS["model"]}
    device = _read_device(sections.get("device"), section, report)
    efficiency = _read_efficiency(sections.get("device"), report)
    overhead = _read_overhead(sections.get("device"), report)
    micro = _require_micro(sections, shape, report)
    known = {key: size for key, size in sizes.items() if size is not None}
    experts = _read_experts(section, sections, report)
    if len(known) < len(sizes) or experts is None:
        return None
    model = GptModel(**known, **experts)
    _check_model(model, section, shape, report)
    if not (device and efficiency and micro and shape.tensor) or overhead is None:
        return None
    sizes_of_run = (shape.stages or 1, shape.pipelines or 1, shape.tensor, micro)
    run = ModelRun(*sizes_of_run, device, efficiency, state, overhead)
    layers = ModelLayers(model, run, section.span)
    return layers if _check_sizes(layers.costs, section, report) else None


def _size(section: Section, key: str, report: Mistakes) -> int | None:
    setting = section.settings.get(key)
    most = MOST_LAYERS if key == "layers" else _LARGEST_SIZE
    return read_whole(setting, report, 1, most) if setting else None


def _read_experts(section: Section, sections: Sections, report: Mistakes) -> dict[str, int] | None:
    """Experts of the model; nothing where it has none. None when the report says what is wrong."""
    settings = section.settings
    if "experts" not in settings:
        if block := sections.get("experts"):
            message = "the job has slots for experts, and its model has none"
            report.error("conflict", message, block.span, "add `experts = 64  active = 2` to the model")
            return None
        for key in ("active", "imbalance"):
            if key in settings:
                message = f"`{key}` is given, and the model has no experts"
                report.error("conflict", message, settings[key].key.span, "add `experts = 64`, or remove it")
                return None
        return {}
    experts = read_whole(settings["experts"], report, 2, MOST_EXPERTS)
    active = read_whole(settings["active"], report, 1, experts or MOST_EXPERTS) if "active" in settings else 1
    imbalance = read_share(settings["imbalance"], report) if "imbalance" in settings else Decimal(0, 0)
    if experts is None or active is None or imbalance is None:
        return None
    if "experts" not in sections:
        message = "the model has experts, and the job does not say how many a worker has room for"
        report.error("missing", message, settings["experts"].key.span, "add `experts { slots = 2 }`")
        return None
    return {"experts": experts, "active": active, "imbalance_ppm": imbalance.floor_of(10_000)}


def _read_device(section: Section | None, model: Section, report: Mistakes) -> GpuKind | None:
    names = any_of(DEVICES)
    if section is None:
        report.error(
            "missing", "a model needs a `device`", model.span, f"write `device a100`; known are {names}"
        )
        return None
    variant = section.block.variant
    if variant is None:
        report.error("missing-name", "`device` is followed by its name", section.span, "write `device a100`")
        return None
    if variant.text not in DEVICES:
        hint = did_you_mean(variant.text, DEVICES, "measure a profile for any other device")
        report.error(
            "unknown-device", f"device must be {names}, got {quote(variant.text)}", variant.span, hint
        )
        return None
    return DEVICES[variant.text]


def _read_efficiency(section: Section | None, report: Mistakes) -> int | None:
    setting = section.settings.get("efficiency") if section else None
    if setting is None:
        return DEFAULT_EFFICIENCY_PPM
    share = read_share(setting, report, _LEAST_EFFICIENCY_PPM)
    return share.floor_of(10_000) if share else None


def _read_overhead(section: Section | None, report: Mistakes) -> int | None:
    setting = section.settings.get("overhead") if section else None
    if setting is None:
        return DEFAULT_OVERHEAD
    amounts = read_amounts(setting, "byte", Over(1), report)
    return amounts[0] if amounts else None


def _require_micro(sections: Sections, shape: GivenShape, report: Mistakes) -> int | None:
    batch = sections.get("batch")
    # Without it, `global` has been reported already.
    if batch and "micro" not in batch.settings and "global" not in batch.settings:
        hint = "write `micro = 1`, the sequences in one micro-batch"
        report.error(
            "missing", "block `batch` has no setting `micro`, and a model needs it", batch.span, hint
        )
    return shape.micro


def _check_sizes(costs: LayerCosts, section: Section, report: Mistakes) -> bool:
    for name in PER_LAYER:
        largest = max(getattr(costs, name), default=0)
        if largest > LARGEST:
            message = f"the model's {name} is absurdly large on one layer: {largest:,}"
            report.error("too-large", message, section.span, "check the sizes of the model")
            return False
    return True


def _check_model(model: GptModel, section: Section, shape: GivenShape, report: Mistakes) -> None:
    settings = section.settings
    if shape.stages and model.layers < shape.stages:
        message = f"layers must be at least {shape.stages:,}, one for each stage, got {model.layers:,}"
        report.error("range", message, settings["layers"].value.span, "lower `pipeline`")
    if model.hidden % model.heads:
        message = f"heads must divide hidden = {model.hidden:,}, got {model.heads:,}"
        report.error("divide", message, settings["heads"].value.span, "every head has the same width")
    elif shape.tensor and model.heads % shape.tensor:
        message = f"tensor must divide {quantity(model.heads, 'head')}, got {shape.tensor:,}"
        report.error("divide", message, settings["heads"].value.span, "a tensor rank holds whole heads")
