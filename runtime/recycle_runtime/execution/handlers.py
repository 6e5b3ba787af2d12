"""What each opcode does in torch: the work of one worker for one stage of the model.

A buffer holds one micro-batch from its forward to the end of its backward, an inbox one message until the
instruction that consumes it. Their numbers come from the compiler; what lies in them is dropped when the plan
says so, and a stream that uses an empty one is an error, not a wait.

What is sent is held until its receiver has it. An activation lies in its buffer anyway until its gradient
comes, which shows that it has arrived. Nothing comes back for a gradient, so only a few of them may be under
way to each receiver; in a plan a receive never stands behind something that waits for a later message of the
same sender, so to wait for an older one cannot lock.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from recycle_runtime.execution.interpreter import Handler, RunAgain
from recycle_runtime.execution.kept_buffers import BufferHistory
from recycle_runtime.execution.shapes import Shapes, as_tuple
from recycle_runtime.execution.split_backward import Split, WeightWork
from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker, numbered_worker
from recycle_runtime.program.microbatches import MicroBatches
from recycle_runtime.transport.interface import Arrival, Pending, Transport

GRADIENTS_UNDER_WAY = 2
"""To each receiver, at most."""


class Stepper(Protocol):
    """Reduction, optimizer and validation of the stage."""

    def reduce(self) -> bool:
        """Sum gradients over peers; False if the step must be run again first."""
        ...

    def step(self) -> None: ...

    def validate(self) -> None: ...


class Shape(Protocol):
    """Of the job: how many of each."""

    @property
    def stages(self) -> int: ...
    @property
    def pipelines(self) -> int: ...
    @property
    def microbatches(self) -> int: ...


class Slot:
    """One micro-batch in a buffer."""

    __slots__ = ("gradients", "inputs", "outputs", "sent", "target", "work")

    def __init__(self) -> None:
        self.inputs: tuple[torch.Tensor, ...] = ()
        self.target: Any = None
        self.outputs: tuple[torch.Tensor, ...] = ()
        self.sent: Pending | None = None
        """The outputs, on their way to the next stage."""
        self.gradients: list[torch.Tensor] = []
        self.work: WeightWork | None = None


class StageHandlers:
    """The handlers, and the buffers and inboxes they work on."""

    def __init__(
        self,
        job: Shape,
        worker: Worker,
        module: torch.nn.Module,
        split: Split,
        loss: Callable[[Any, Any], torch.Tensor],
        data: MicroBatches,
        buffers: BufferHistory,
        shapes: Shapes,
        transport: Transport,
        stepper: Stepper,
        device: torch.device,
        seed: int,
    ) -> None:
        self._job, self._stage = job, worker[1]
        self._module, self._split, self._loss = module, split, loss
        self._data, self._shapes, self._transport, self._stepper = data, shapes, transport, stepper
        self._device, self._seed = device, seed
        self._is_first, self._is_last = self._stage == 0, self._stage == job.stages - 1
        self._share = 1.0 / (job.pipelines * job.microbatches)
        self._buffers: dict[int, Slot] = {}
        self._inboxes: dict[int, Arrival] = {}
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._gradients_sent: dict[int, deque[Pending]] = {}
        self._history = buffers
        self._generators = _generators(device)
        self._step: int | None = None

    def table(self) -> dict[Opcode, Handler]:
        """The handler of every opcode."""
        return {opcode: getattr(self, opcode.name.lower()) for opcode in Opcode}

    def begin(self, step: int) -> None:
        """Forget what a broken run of a step has left, and be ready for this one."""
        self._history.begin(step)
        self._step = step
        self.drop()

    def drop(self) -> None:
        """Let go of everything that a step holds."""
        self._buffers.clear()
        self._inboxes.clear()
        self._loss_sum.zero_()
        self._gradients_sent.clear()

    def end(self) -> float | None:
        """What this worker adds to the loss of the step; None where losses are not computed."""
        self._transport.flush()
        return self.loss

    @property
    def loss(self) -> float | None:
        """What this worker has added to the loss of the step so far; None where losses are not computed."""
        return float(self._loss_sum) if self._is_last else None

    @property
    def held(self) -> int:
        """Micro-batches in buffers now."""
        return len(self._buffers)

    def load(self, instruction: Instruction) -> None:
        slot = self._buffers.setdefault(instruction.buffer, Slot())
        inputs, target = self._data.item(self._now, self._index(instruction))
        if self._is_first:
            slot.inputs = tuple(tensor.to(self._device) for tensor in as_tuple(inputs))
        if self._is_last:
            slot.target = target.to(self._device) if isinstance(target, torch.Tensor) else target

    def recv_activation(self, instruction: Instruction) -> None:
        specs = self._shapes.arriving(self._signature(instruction))
        self._inboxes[instruction.inbox] = self._transport.receive(self._neighbour(instruction), specs)

    def recv_gradient(self, instruction: Instruction) -> None:
        leaving = self._shapes.leaving(self._signature(instruction))
        specs = [spec for spec in leaving if spec.dtype.is_floating_point]
        self._inboxes[instruction.inbox] = self._transport.receive(self._neighbour(instruction), specs)

    def forward(self, instruction: Instruction) -> None:
        slot = self._buffers.setdefault(instruction.buffer, Slot())
        if instruction.inbox != NONE:
            slot.inputs = tuple(self._inboxes.pop(instruction.inbox).wait())
        for tensor in slot.inputs:
            # What came from another stage wants its gradient back; data does not.
            tensor.requires_grad_(not self._is_first and tensor.is_floating_point())
        seed = forward_seed(self._seed, self._now, self._index(instruction), self._stage)
        for generator in self._generators:
            generator.manual_seed(seed)
        output = self._module(*slot.inputs)
        if self._is_last:
            loss = self._loss(output, slot.target) * self._share
            slot.target = None
            self._loss_sum += loss.detach()
            slot.outputs = (loss,)
        else:
            slot.outputs = as_tuple(output)
            self._shapes.show(self._signature(instruction), slot.outputs)

    def send_activation(self, instruction: Instruction) -> None:
        slot = self._buffers[instruction.buffer]
        outputs = [tensor.detach() for tensor in slot.outputs]
        slot.sent = self._transport.send(self._neighbour(instruction), outputs)

    def backward_input(self, instruction: Instruction) -> None:
        slot = self._buffers[instruction.buffer]
        slot.work = self._split.backward_input(*self._arrived(instruction, slot))
        self._keep_gradients(slot)

    def send_gradient(self, instruction: Instruction) -> None:
        slot = self._buffers[instruction.buffer]
        gradients, slot.gradients = slot.gradients, []
        sent = self._transport.send(self._neighbour(instruction), gradients)
        if slot.work is None:
            del self._buffers[instruction.buffer]
        if sent is not None:
            under_way = self._gradients_sent.setdefault(instruction.neighbour, deque())
            under_way.append(sent)
            if len(under_way) > GRADIENTS_UNDER_WAY:
                under_way.popleft().wait()

    def backward_weight(self, instruction: Instruction) -> None:
        work = self._buffers.pop(instruction.buffer).work
        assert work is not None, "W of a micro-batch whose input gradient was not computed"
        work.run()

    def backward(self, instruction: Instruction) -> None:
        slot = self._buffers[instruction.buffer]
        self._split.backward(*self._arrived(instruction, slot))
        self._keep_gradients(slot)
        if self._is_first:
            # Nothing has to be sent any more.
            del self._buffers[instruction.buffer]

    def barrier(self, _: Instruction) -> None:
        self._transport.barrier()

    def reduce(self, _: Instruction) -> None:
        if not self._stepper.reduce():
            raise RunAgain

    def optimizer(self, _: Instruction) -> None:
        self._stepper.step()

    def validate(self, _: Instruction) -> None:
        self._stepper.validate()

    def _arrived(
        self, instruction: Instruction, slot: Slot
    ) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor | None]]:
        """The outputs of a forward, taken out of their slot, and the gradients that have come for them."""
        outputs, slot.outputs = slot.outputs, ()
        if self._is_last:
            return outputs, [None]
        arrived = iter(self._inboxes.pop(instruction.inbox).wait())
        if slot.sent is not None:
            slot.sent.wait()
            slot.sent = None
        return outputs, [next(arrived) if output.is_floating_point() else None for output in outputs]

    def _keep_gradients(self, slot: Slot) -> None:
        """What has to be sent on; the inputs are not needed any more."""
        if not self._is_first:
            slot.gradients = [_gradient(tensor) for tensor in slot.inputs if tensor.is_floating_point()]
        slot.inputs = ()

    def _neighbour(self, instruction: Instruction) -> Worker:
        """The worker at the other end of a message."""
        return numbered_worker(instruction.neighbour, self._job.pipelines)

    def _signature(self, instruction: Instruction) -> str:
        return self._data.signature(self._now, self._index(instruction))

    @property
    def _now(self) -> int:
        assert self._step is not None, "no step has begun"
        return self._step

    def _index(self, instruction: Instruction) -> int:
        """Of the micro-batch among all of the step."""
        return instruction.pipeline * self._job.microbatches + instruction.microbatch


def forward_seed(seed: int, step: int, index: int, stage: int) -> int:
    """Of the random numbers of one forward: the same wherever it runs, and whenever it is run again."""
    mixed = seed
    for number in (step, index, stage):
        mixed = (mixed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % (1 << 63)
    return mixed


def _generators(device: torch.device) -> list[torch.Generator]:
    """What a stage may draw from. torch.manual_seed asks every backend, and takes most of a millisecond."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()
        generators.append(torch.cuda.default_generators[device.index or 0])
    return generators


def _gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Of an input; zeros where the stage does not use it."""
    gradient = tensor.grad
    tensor.grad = None
    return torch.zeros_like(tensor) if gradient is None else gradient
