"""Handlers of opcodes in torch: the work of one worker for the chunks that it holds.

A buffer holds one micro-batch from its forward to the end of its backward, an inbox one message until the
instruction that consumes it. Their numbers come from the compiler; what lies in them is dropped when the plan
says so, and a stream that uses an empty one is an error, not a wait.

What is sent is held until its receiver has it. An activation lies in its buffer anyway until its gradient
comes, which shows that it has arrived. Nothing comes back for a gradient, so only a few of them may be under
way to each receiver; in a plan a receive never stands behind something that waits for a later message of the
same sender, so to wait for an older one cannot lock. What a worker sends to itself, from one of its chunks to
the next, is handed over here and reaches no transport.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from recycle_runtime.execution.backward_watch import BackwardWatch
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.cuda_graphs import ChunkGraphs, GraphedWork, InputSpec
from recycle_runtime.execution.device_copies import Readback, mark_on, to_device
from recycle_runtime.execution.finiteness import Finiteness
from recycle_runtime.execution.foreign_parameters import refuse_foreign
from recycle_runtime.execution.interpreter import Handler, RunAgain
from recycle_runtime.execution.local_tensors import plain_outputs, settled
from recycle_runtime.execution.overlap import Overlap, PlannedJob
from recycle_runtime.execution.rank_gradients import refuse_partial
from recycle_runtime.execution.shapes import Looks, Shapes, as_tuple, numbers_with_gradient
from recycle_runtime.execution.split_backward import WeightWork
from recycle_runtime.execution.ways import copied_text, reordered_bytes
from recycle_runtime.experts.among_peers import Arrivals
from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker, numbered_worker
from recycle_runtime.program.cutting import Stage
from recycle_runtime.program.named_inputs import with_host_text
from recycle_runtime.protocol.messages.steps import ROUTER
from recycle_runtime.transport.interface import Arrival, Pending, Transport

_log = logging.getLogger(__name__)
GRADIENTS_UNDER_WAY = 2
"""To each receiver, at most."""
WhenHere = Callable[[Callable[[], None]], None]


class Steps(Protocol):
    """Reduction, optimizer and validation: see `steps.WorkerSteps`."""

    def begin_sums(self, chunk: int, complete: Sequence[Any]) -> None:
        """Sum gradients of a chunk that are complete, behind these marks of device work."""
        ...

    def reduce(self, chunk: int) -> bool:
        """Sum gradients of a chunk over its holders; False if the step must be run again first."""
        ...

    def step(self, chunk: int) -> None: ...

    def gather(self, chunk: int) -> None:
        """Begin to get the weights of a chunk from the owners of their shards, after its step."""
        ...

    def when_here(self, chunk: int, call: Callable[[], None]) -> None:
        """Call once they are here."""
        ...

    def validate(self) -> None: ...

    @property
    def meets_all(self) -> bool:
        """True if nobody steps before all workers are done, even without a barrier."""
        ...


class JobShape(Protocol):
    """Of the job: how many of each."""

    @property
    def pipelines(self) -> int: ...
    @property
    def microbatches(self) -> int: ...


class Buffer:
    """Content of a buffer: one micro-batch of one chunk."""

    __slots__ = (
        "arrivals",
        "gradients",
        "graph",
        "inputs",
        "outputs",
        "sent",
        "served",
        "share",
        "target",
        "work",
    )

    def __init__(self) -> None:
        self.inputs: tuple[torch.Tensor, ...] = ()
        self.target: Any = None
        self.outputs: tuple[torch.Tensor, ...] = ()
        self.share: float | None = None
        """Weight of its loss in the mean over the step, unless the loss has been multiplied by it already."""
        self.sent: Pending | None = None
        """The outputs, on their way to the next chunk."""
        self.gradients: list[torch.Tensor] = []
        self.work: WeightWork | GraphedWork | None = None
        self.graph: GraphedWork | None = None
        """Captured graphs that compute it, if there are any."""
        self.served: list[WeightWork] = []
        """Of a round that was served: what the weights of each mixture of experts still need."""
        self.arrivals: Arrivals = {}
        """From peers that share experts, where the forward is computed again."""


class _Delivery(NamedTuple):
    """A message from one chunk of this worker to another: what it is of, and which chunk it is for."""

    pipeline: int
    microbatch: int
    chunk: int
    is_gradient: bool


class _LocalArrival:
    """A message of this worker to itself, which is there when it is waited for."""

    def __init__(self, deliveries: dict[_Delivery, list[torch.Tensor]], delivery: _Delivery) -> None:
        self._deliveries, self._delivery = deliveries, delivery

    def wait(self) -> list[torch.Tensor]:
        return self._deliveries.pop(self._delivery)


class OpHandlers:
    """The handlers, and the buffers and inboxes they work on."""

    def __init__(
        self,
        job: JobShape,
        worker: Worker,
        chunks: Mapping[int, Chunk],
        shapes: Mapping[int, Shapes],
        transport: Transport,
        steps: Steps,
        device: torch.device,
        looks: Looks | None = None,
    ) -> None:
        """`looks` is needed where micro-batches pass through workers that do not load them."""
        self._job, self._worker, self._chunks, self._shapes = job, worker, chunks, shapes
        self._transport, self._steps, self._device = transport, steps, device
        self._has_loss = any(chunk.is_last for chunk in chunks.values())
        self._looks, self._loads = looks, frozenset[int]()
        self._data = next(iter(chunks.values())).data
        """Of all chunks."""
        self._share = 1.0 / self._data.per_step
        self._parts = job.pipelines * job.microbatches // self._data.per_step
        """Into how many the plan splits every micro-batch."""
        self._buffers: dict[int, Buffer] = {}
        self._inboxes: dict[int, Arrival] = {}
        self._signatures: dict[int, str] = {}
        """Of the micro-batches of this step, as far as anybody has asked."""
        self._first_gradients: dict[tuple[torch.dtype, float], torch.Tensor] = {}
        """Backward begins with one of these: shares of a loss in the mean over the step."""
        self._deliveries: dict[_Delivery, list[torch.Tensor]] = {}
        """Tensors that one chunk of this worker has sent to another, until they are used."""
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._loss = Readback()
        self._loss.take(self._loss_sum)
        self._losses = 0
        """Number of losses in the sum since the sum was last read back."""
        self._losses_of_step = 0
        """Number of losses in a step, if that is known."""
        self._gradients_sent: dict[Worker, deque[Pending]] = {}
        self._last_works: dict[int, Instruction] = {}
        """The last B or W of each chunk in a step: with it, gradients become complete."""
        self._last_backwards: dict[int, int] = {}
        """Of each chunk whose gradients become complete with a B, the micro-batch of that."""
        self._watches: dict[int, BackwardWatch] = {}
        """Of a backward that is the last."""
        self._now = -1
        """The step under way."""
        can_capture = device.type == "cuda" and self._parts == 1
        self._graphs = {
            number: ChunkGraphs(chunk)
            for number, chunk in chunks.items()
            if can_capture and chunk.setting.graphs != "off"
        }
        for number, graphs in self._graphs.items():
            if chunks[number].expert_counts.layers:
                graphs.refuse("its experts compute as many tokens as a router sends them")
        self.finiteness = Finiteness()
        self.samples = self.tokens = 0
        """That were loaded for the step so far."""
        self._overlap: Overlap | None = None
        """Parts of W that rounds compute, where the plan has any."""
        self._seen: set[int] = set()
        """Chunks whose outputs have been looked at."""
        self._compared: set[int] = set()
        """Chunks of which the gradients of all ranks of this worker have been compared."""
        self._current: set[int] = set()
        """Chunks whose weights are here, and lowered: graphs can be replayed in this step."""
        self.gives_back: dict[int, bool] = {}
        """Of chunks whose inputs wanted gradients in this step: whether any got one."""

    def table(self) -> dict[Opcode, Handler]:
        """The handler of every opcode."""
        table = {opcode: getattr(self, opcode.name.lower()) for opcode in Opcode}
        return table if self._overlap is None else self._overlap.around(table)

    def overlap(self, job: PlannedJob, stream: Sequence[Instruction]) -> None:
        """Compute parts of W in rounds, as this stream means it."""
        mixtures = {number: len(chunk.expert_counts.layers) for number, chunk in self._chunks.items()}
        self._overlap = Overlap(job, stream, mixtures, self._weight_works, self._device)

    def loads(self, stream: Sequence[Instruction]) -> list[int]:
        """The micro-batches of a step that a stream loads, in its order."""
        self._losses_of_step = sum(
            each.opcode is Opcode.FORWARD and self._chunks[each.chunk].is_last for each in stream
        )
        works = (each for each in stream if each.opcode in (Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT))
        self._last_works = {each.chunk: each for each in works}
        self._last_backwards = {
            chunk: self._index(last)
            for chunk, last in self._last_works.items()
            if last.opcode is Opcode.BACKWARD and isinstance(self._chunks[chunk].module, Stage)
        }
        loads = (self._place(self._index(each))[0] for each in stream if each.opcode is Opcode.LOAD)
        found = list(dict.fromkeys(loads))
        self._loads = frozenset(found)
        return found

    def begin(self, step: int) -> None:
        """Forget what a broken run of a step has left, and be ready for this one."""
        for chunk in self._chunks.values():
            chunk.buffers.begin(step)
            for counts in chunk.step_counts:
                counts.begin(self._job.pipelines * self._job.microbatches)
            chunk.split.refresh()
        self._now = step
        self._current.clear()
        self.finiteness.begin(step)
        self.samples = self.tokens = 0
        self._signatures = {}
        self.gives_back = {}
        self.drop()
        for graphs in self._graphs.values():
            graphs.between_steps()

    @property
    def choices(self) -> tuple[int, int]:
        """Of experts in the last step, by mixtures with a capacity, and how many of them were dropped."""
        told = [chunk.expert_counts.choices for chunk in self._chunks.values()]
        return sum(made for made, _ in told), sum(dropped for _, dropped in told)

    def drop(self) -> None:
        """Let go of everything that a step holds."""
        self._buffers.clear()
        self._inboxes.clear()
        self._deliveries.clear()
        self._loss_sum.zero_()
        self._losses = 0
        self._loss.take(self._loss_sum)
        self._gradients_sent.clear()
        self._watches.clear()
        if self._overlap is not None:
            self._overlap.begin()

    def end(self) -> float | None:
        """End the step; return this worker's share of its loss, None where losses are not computed."""
        self._transport.flush()
        return self.loss

    @property
    def loss(self) -> float | None:
        """Share of this worker in the loss of the step so far; None where losses are not computed."""
        if not self._has_loss:
            return None
        if self._losses:
            self._read_back()
        return self._loss.read()[0]

    @property
    def held(self) -> int:
        """Micro-batches in buffers now."""
        return len(self._buffers)

    def load(self, instruction: Instruction) -> None:
        buffer = self._buffers.setdefault(instruction.buffer, Buffer())
        chunk, index = self._chunks[instruction.chunk], self._index(instruction)
        inputs, target = self._data.item(self._now, *self._place(index))
        arguments = list(chunk.program.arguments(inputs)) if chunk.is_first else []
        moves_target = chunk.is_last and isinstance(target, torch.Tensor)
        texts = with_host_text(inputs, arguments)
        moved = to_device([*arguments[texts:], target] if moves_target else arguments[texts:], self._device)
        if chunk.is_last:
            buffer.target = moved.pop() if moves_target else target
        if chunk.is_first:
            self._tell_looks()
            buffer.inputs = (*arguments[:texts], *moved)
            self.finiteness.note("data", index, moved, stays=True)
            self._count(moved[0])

    def recv_activation(self, instruction: Instruction) -> None:
        neighbour = self._neighbour(instruction)
        if neighbour == self._worker:
            self._inboxes[instruction.inbox] = self._delivered(instruction, is_gradient=False)
            return
        specs = self._shapes[instruction.chunk].arriving(self._signature(self._index(instruction)))
        self._inboxes[instruction.inbox] = self._transport.receive(neighbour, specs)

    def recv_gradient(self, instruction: Instruction) -> None:
        neighbour = self._neighbour(instruction)
        if neighbour == self._worker:
            self._inboxes[instruction.inbox] = self._delivered(instruction, is_gradient=True)
            return
        leaving = self._shapes[instruction.chunk].leaving(self._signature(self._index(instruction)))
        specs = [spec for spec in leaving if spec.dtype.is_floating_point]
        self._inboxes[instruction.inbox] = self._transport.receive(neighbour, specs)

    def forward(self, instruction: Instruction) -> None:
        buffer = self._buffers.setdefault(instruction.buffer, Buffer())
        chunk = self._chunks[instruction.chunk]
        if instruction.inbox != NONE:
            buffer.inputs = tuple(self._inboxes.pop(instruction.inbox).wait())
        for tensor in buffer.inputs:
            # What came from another chunk wants its gradient back; data does not.
            tensor.requires_grad_(not chunk.is_first and tensor.is_floating_point())
        index, graphs = self._index(instruction), self._graphs.get(chunk.number)
        buffer.graph = None if graphs is None else self._graph_for(graphs, instruction, buffer)
        for counts in chunk.step_counts:
            counts.before_forward(index, self._loss_share(index))
        if buffer.graph is not None:
            buffer.outputs, buffer.share = self._replayed(buffer.graph, chunk, index, buffer), None
        elif graphs is not None:
            with graphs.watching():
                buffer.outputs = self._eagerly(chunk, index, buffer)
        else:
            buffer.outputs = self._eagerly(chunk, index, buffer)
        for counts in chunk.step_counts:
            counts.after_forward(index)
        buffer.target = None
        for name, experts in chunk.routers:
            if experts.router_sum is not None:
                self.finiteness.note(f"{ROUTER}{name}", index, (experts.router_sum,))
        self.finiteness.note("loss" if chunk.is_last else "forward", index, buffer.outputs)
        if chunk.is_last:
            self._add_loss(buffer.outputs[0].detach(), 1.0 if buffer.share is None else buffer.share)
        else:
            self._shapes[chunk.number].show(self._signature(index), buffer.outputs)

    def _replayed(
        self, graph: GraphedWork, chunk: Chunk, index: int, buffer: Buffer
    ) -> tuple[torch.Tensor, ...]:
        """The outputs of a forward that was captured."""
        if chunk.number not in self._current:
            self._current.add(chunk.number)
            chunk.arrive(None)
            chunk.split.refresh()
        graph.forward(buffer.inputs, buffer.target, self._now, index)
        return graph.outputs

    def _eagerly(self, chunk: Chunk, index: int, buffer: Buffer) -> tuple[torch.Tensor, ...]:
        """The outputs of a forward: the loss, where the chunk is the last."""
        stage: Any = chunk.module
        if (watch := self._watch(chunk, index)) is not None:
            stage.on_value = watch.before_layer
        try:
            output = self._among_peers(chunk, buffer, chunk.forward, buffer.inputs, self._now, index)
        finally:
            if watch is not None:
                stage.on_value = None
        if not chunk.is_last:
            return self._looked_at(chunk, plain_outputs(chunk.program.path, as_tuple(output)))
        # The mean over the step has its place where backward begins: that is no work at all.
        buffer.share = self._loss_share(index)
        loss = chunk.loss(output, buffer.target)
        if not loss.requires_grad:
            chunk.program.refuse_constant_loss()
        return self._looked_at(chunk, (loss,))

    def _watch(self, chunk: Chunk, index: int) -> BackwardWatch | None:
        """Of a forward whose backward is the last of the step: it sees how far that comes."""
        if self._last_backwards.get(chunk.number) != index:
            return None
        groups = chunk.stepper.gradients.early_groups
        if not groups:
            return None
        watch = self._watches[chunk.number] = BackwardWatch(chunk.layers, groups, self._device)
        return watch

    def _among_peers(self, chunk: Chunk, buffer: Buffer, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Compute what its mixtures of experts may exchange with those of peers for this micro-batch."""
        if not chunk.expert_counts.layers:
            return compute(*arguments)
        with self._here(), chunk.expert_counts.keeping(buffer.arrivals):
            return compute(*arguments)

    def _looked_at(self, chunk: Chunk, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """The same; the first of a chunk are looked at."""
        if chunk.number not in self._seen:
            self._seen.add(chunk.number)
            refuse_foreign(chunk, outputs)
            chunk.compare_ranks(outputs)
            if not chunk.is_last:
                _log.info("chunk %d: %s", chunk.number, copied_text([*map(reordered_bytes, outputs)]))
        return outputs

    def _compare_ranks(self, chunk: Chunk) -> None:
        """After the first backward of a chunk: nothing of it has been summed with that of peers."""
        if chunk.number not in self._compared:
            self._compared.add(chunk.number)
            if chunk.setting.group is not None:
                refuse_partial(chunk.program.path, chunk.layers, chunk.setting.group)

    def _graph_for(self, graphs: ChunkGraphs, instruction: Instruction, buffer: Buffer) -> GraphedWork | None:
        target = buffer.target
        is_tensor = isinstance(target, torch.Tensor)
        if not (is_tensor or target is None or (isinstance(target, tuple) and not target)):
            graphs.refuse("its targets are not tensors")
            return None
        look = InputSpec(
            tuple((tensor.shape, tensor.dtype) for tensor in buffer.inputs),
            tuple(tuple(tensor.tolist()) for tensor in buffer.inputs if tensor.is_cpu),
            (target.shape, target.dtype) if is_tensor else target,
            self._share,
            self._chunks[instruction.chunk].split.defers,
        )
        return graphs.find(instruction.buffer, look)

    def _add_loss(self, loss: torch.Tensor, share: float = 1.0) -> None:
        self._loss_sum.add_(loss, alpha=share)
        self._losses += 1
        if self._losses == self._losses_of_step:
            # Whoever asks for the loss waits for this forward and not for what comes after it.
            self._read_back()

    def _read_back(self) -> None:
        self._loss.take(self._loss_sum)
        self._losses = 0

    def send_activation(self, instruction: Instruction) -> None:
        buffer = self._buffers[instruction.buffer]
        outputs = [tensor.detach() for tensor in buffer.outputs]
        buffer.sent = self._send(instruction, outputs, to_chunk=instruction.chunk + 1)

    def backward_input(self, instruction: Instruction) -> None:
        buffer, chunk = self._buffers[instruction.buffer], self._chunks[instruction.chunk]
        arrived = self._arrived(instruction, buffer)
        outputs, gradients = self._reached(chunk, buffer, *arrived)
        if buffer.graph is not None and outputs:
            self._replay_backward(buffer.graph, buffer, chunk, arrived[1])
            buffer.work = buffer.graph
        else:
            buffer.work = self._among_peers(chunk, buffer, chunk.split.backward_input, outputs, gradients)
            buffer.arrivals.clear()
            self._keep_gradients(buffer, chunk)
        self.finiteness.note("backward", self._index(instruction), buffer.gradients)

    def send_gradient(self, instruction: Instruction) -> None:
        buffer = self._buffers[instruction.buffer]
        gradients, buffer.gradients = buffer.gradients, []
        sent = self._send(instruction, gradients, to_chunk=instruction.chunk - 1)
        if buffer.work is None:
            del self._buffers[instruction.buffer]
        if sent is not None:
            under_way = self._gradients_sent.setdefault(self._neighbour(instruction), deque())
            under_way.append(sent)
            if len(under_way) > GRADIENTS_UNDER_WAY:
                under_way.popleft().wait()

    def backward_weight(self, instruction: Instruction) -> None:
        if self._overlap is not None:
            self._overlap.end(instruction.buffer)
        work = self._buffers.pop(instruction.buffer).work
        assert work is not None, "W of a micro-batch whose input gradient was not computed"
        chunk, complete = self._chunks[instruction.chunk], list[Any]()
        if instruction != self._last_works.get(chunk.number):
            work.run()
            self._compare_ranks(chunk)
            return
        groups = chunk.stepper.gradients.early_groups
        work.run(groups, lambda: complete.append(mark_on(self._device)))
        self._compare_ranks(chunk)
        self._steps.begin_sums(chunk.number, complete)

    def backward(self, instruction: Instruction) -> None:
        buffer, chunk = self._buffers[instruction.buffer], self._chunks[instruction.chunk]
        arrived = self._arrived(instruction, buffer)
        outputs, gradients = self._reached(chunk, buffer, *arrived)
        if buffer.graph is not None and outputs:
            self._replay_backward(buffer.graph, buffer, chunk, arrived[1])
        else:
            self._among_peers(chunk, buffer, chunk.split.backward, outputs, gradients)
            buffer.arrivals.clear()
            self._keep_gradients(buffer, chunk)
        self._compare_ranks(chunk)
        if chunk.is_first:
            # Nothing has to be sent any more.
            del self._buffers[instruction.buffer]
        else:
            self.finiteness.note("backward", self._index(instruction), buffer.gradients)
        if instruction == self._last_works.get(chunk.number) and (
            watch := self._watches.pop(chunk.number, None)
        ):
            self._steps.begin_sums(chunk.number, watch.complete)

    def serve_forward(self, instruction: Instruction) -> None:
        chunk = self._chunks[instruction.chunk]
        self._buffers[instruction.buffer] = buffer = Buffer()
        buffer.outputs = chunk.serve()

    def serve_backward(self, instruction: Instruction) -> None:
        chunk, served = self._chunks[instruction.chunk], self._buffers.pop(instruction.buffer).outputs
        with self._here():
            for output in reversed(served):
                chunk.split.backward([output], [torch.zeros_like(output)])

    def serve_backward_input(self, instruction: Instruction) -> None:
        buffer, chunk = self._buffers[instruction.buffer], self._chunks[instruction.chunk]
        served, buffer.outputs = buffer.outputs, ()
        with self._here():
            buffer.served = [
                chunk.split.backward_input([output], [torch.zeros_like(output)])
                for output in reversed(served)
            ]

    def serve_backward_weight(self, instruction: Instruction) -> None:
        if self._overlap is not None:
            self._overlap.end(instruction.buffer)
        for work in self._buffers.pop(instruction.buffer).served:
            work.run()

    def _weight_works(self, buffer: int) -> Sequence[WeightWork]:
        """Weight gradients of a buffer that are still to be computed."""
        held = self._buffers[buffer]
        return [held.work] if isinstance(held.work, WeightWork) else held.served

    def barrier(self, _: Instruction) -> None:
        if not self._steps.meets_all:
            self._transport.barrier()

    def reduce(self, instruction: Instruction) -> None:
        if not self._steps.reduce(instruction.chunk):
            raise RunAgain

    def optimizer(self, instruction: Instruction) -> None:
        self._steps.step(instruction.chunk)

    def gather(self, instruction: Instruction) -> WhenHere:
        self._steps.gather(instruction.chunk)
        return partial(self._steps.when_here, instruction.chunk)

    def validate(self, _: Instruction) -> None:
        self._steps.validate()

    def _here(self) -> AbstractContextManager[Any]:
        """Around a backward that waits for peers: it does so in this thread, which another may have to take
        the place of, and not in one of autograd's."""
        return (
            torch.autograd.set_multithreading_enabled(False) if self._device.type == "cuda" else nullcontext()
        )

    def _send(
        self, instruction: Instruction, tensors: list[torch.Tensor], *, to_chunk: int
    ) -> Pending | None:
        """To the worker that runs this chunk of the micro-batch, which may be this one."""
        neighbour = self._neighbour(instruction)
        if neighbour != self._worker:
            return self._transport.send(neighbour, tensors)
        is_gradient = instruction.opcode is Opcode.SEND_GRADIENT
        delivery = _Delivery(instruction.pipeline, instruction.microbatch, to_chunk, is_gradient)
        self._deliveries[delivery] = tensors
        return None

    def _delivered(self, instruction: Instruction, *, is_gradient: bool) -> Arrival:
        delivery = _Delivery(instruction.pipeline, instruction.microbatch, instruction.chunk, is_gradient)
        return _LocalArrival(self._deliveries, delivery)

    def _arrived(
        self, instruction: Instruction, buffer: Buffer
    ) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor | None]]:
        """The outputs of a forward, taken out of their buffer, and the gradients that have come for them."""
        outputs, buffer.outputs = buffer.outputs, ()
        if self._chunks[instruction.chunk].is_last:
            return outputs, [None if buffer.share is None else self._first_gradient(outputs[0], buffer.share)]
        arrived = iter(self._inboxes.pop(instruction.inbox).wait())
        if buffer.sent is not None:
            buffer.sent.wait()
            buffer.sent = None
        return outputs, [next(arrived) if output.is_floating_point() else None for output in outputs]

    def _reached(
        self,
        chunk: Chunk,
        buffer: Buffer,
        outputs: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
    ) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        """Without outputs that the next chunk does not train through: what came for them is zeros."""
        if chunk.is_last:
            return list(outputs), list(gradients)
        trained = (
            [tensor.requires_grad for tensor in outputs] if buffer.graph is None else buffer.graph.trained
        )
        asked = [
            number for number, gradient in enumerate(gradients) if gradient is not None and trained[number]
        ]
        numbers = self._shapes[chunk.number].reached(asked, self._wait_for_device)
        return [outputs[number] for number in numbers], [gradients[number] for number in numbers]

    def _wait_for_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _first_gradient(self, loss: torch.Tensor, share: float) -> torch.Tensor:
        key = loss.dtype, share
        if key not in self._first_gradients:
            self._first_gradients[key] = torch.full_like(loss, share, requires_grad=False)
        return self._first_gradients[key]

    def _replay_backward(
        self, graph: GraphedWork, buffer: Buffer, chunk: Chunk, gradients: Sequence[torch.Tensor | None]
    ) -> None:
        buffer.gradients = graph.backward(gradients)
        buffer.inputs = ()
        self._tell_reached(chunk, graph.reached)

    def _keep_gradients(self, buffer: Buffer, chunk: Chunk) -> None:
        """Keep the gradients that have to be sent on; the inputs are not needed any more."""
        if not chunk.is_first:
            self._tell_reached(chunk, numbers_with_gradient(buffer.inputs))
            buffer.gradients = [_gradient(tensor) for tensor in buffer.inputs if tensor.is_floating_point()]
        buffer.inputs = ()

    def _tell_reached(self, chunk: Chunk, numbers: Sequence[int]) -> None:
        """Numbers of the inputs that a backward has found gradients of."""
        if not chunk.is_first:
            self.gives_back[chunk.number] = bool(numbers) or self.gives_back.get(chunk.number, False)
            self._shapes[chunk.number].tell_reached(numbers)

    def _neighbour(self, instruction: Instruction) -> Worker:
        """The worker at the other end of a message."""
        return numbered_worker(instruction.neighbour, self._job.pipelines)

    def _signature(self, index: int) -> str:
        if (known := self._signatures.get(index)) is None:
            known = self._signatures[index] = self._find_signature(index)
        return known

    def _find_signature(self, index: int) -> str:
        place, data = self._place(index), self._data
        whole = place[0]
        if self._looks is not None and whole not in self._loads and not data.is_known(self._now, whole):
            data.tell(self._now, whole, self._looks.ask(self._now, whole, index))
        return data.signature(self._now, *place)

    def _tell_looks(self) -> None:
        if self._looks is not None:
            known = (index for index in self._loads if self._data.is_known(self._now, index))
            self._looks.tell(self._now, {index: self._data.look(self._now, index) for index in known})

    def _place(self, index: int) -> tuple[int, int, int]:
        """Whole micro-batch, part of it, and how many parts it has."""
        return *divmod(index, self._parts), self._parts

    def _loss_share(self, index: int) -> float:
        """Weight of the loss of a micro-batch, or of a part of one, in the mean over the step."""
        if self._parts == 1:
            return self._share
        return self._share * self._data.weight(self._now, *self._place(index))

    def _count(self, inputs: torch.Tensor) -> None:
        """Samples lie along the first dimension; whole numbers in rows are tokens."""
        self.samples += inputs.shape[0] if inputs.dim() else 1
        is_text = inputs.dim() > 1 and not inputs.is_floating_point() and not inputs.is_complex()
        self.tokens += inputs.numel() if is_text else 0

    def _index(self, instruction: Instruction) -> int:
        """Of the micro-batch among all of the step; half h of micro-batch u is number 2 u + h."""
        return instruction.pipeline * self._job.microbatches + instruction.microbatch


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Of an input; zeros where the chunk does not use it."""
    gradient = tensor.grad
    tensor.grad = None
    return torch.zeros_like(tensor) if gradient is None else settled(gradient)
