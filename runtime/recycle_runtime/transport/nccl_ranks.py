"""The tensor-parallel ranks of one worker over NCCL: the collectives that torch.distributed asks a group for.

They use a communicator like all others of this runtime. torch's own group would end the process: while it
queues a collective, another rank or thread aborts; the call fails, and so does the end of the group of calls
that it stands in, which torch asks for while it unwinds.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.transport.guarded import PeerError
from recycle_runtime.transport.nccl_library import NcclError, Operation

_OPERATIONS = {
    "SUM": Operation.SUM,
    "PRODUCT": Operation.PRODUCT,
    "MAX": Operation.MAX,
    "MIN": Operation.MIN,
    "AVG": Operation.AVERAGE,
}
_OF_BOOL = {Operation.SUM: Operation.MAX, Operation.PRODUCT: Operation.MIN}
"""As torch has them: either, and both."""
_MANY = 64
"""Works that nobody has waited for; from here on those that are done are looked for."""


class _Queued(dist.Work):
    """Collectives that are queued."""

    def __init__(
        self, queues: Any, mark: Any, results: list[torch.Tensor], on_waited: Callable[[], object]
    ) -> None:
        super().__init__()
        self._queues, self._mark, self._results, self._on_waited = queues, mark, results, on_waited

    def wait(self, timeout: Any = None) -> bool:
        """Computation comes after them."""
        self._queues.wait(self._mark)
        self._on_waited()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._queues.is_done(self._mark)

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self._results

    def get_future(self) -> Any:
        self.wait()
        devices: list[Any] = list({each.device for each in self._results if each.is_cuda})
        future: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
        future.set_result(self._results)
        return future


class NcclRanks:
    """This rank of them. Tensors are on its device; each call is queued on a lane beside computation."""

    def __init__(self, end: Any, library: Any, queues: Any, rank: int, size: int) -> None:
        """`end` has the communicator and the lane; its `last` is the end of what was queued last."""
        self._end, self._library, self._queues = end, library, queues
        self._rank, self._size = rank, size
        self._device = queues.allocate(0).device
        self._held: dict[int, tuple[Any, Any]] = {}
        """Ends of calls, and memory that nobody else may be given until computation comes after them."""
        self._count = itertools.count()

    def name(self) -> str:
        return "nccl"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    # Sums.

    def allreduce(self, tensors: list[torch.Tensor] | torch.Tensor, options: Any = None) -> _Queued:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors

        def call(stream: int) -> None:
            for numbers, operation in operands:
                self._ranks.sum(numbers, stream, operation)

        operands = [_operand(each, options) for each in tensors]
        return self._queued(call, tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], options: Any) -> _Queued:
        def call(stream: int) -> None:
            for numbers, operation in operands:
                self._ranks.reduce(numbers, options.rootRank, stream, operation)

        operands = [_operand(each, options) for each in tensors]
        return self._queued(call, tensors)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any = None
    ) -> _Queued:
        def call(stream: int) -> None:
            for (own, _), (whole, operation) in operands:
                self._ranks.reduce_scatter(own, whole, stream, operation)

        operands = [
            (_operand(own, options), _operand(whole.contiguous(), options))
            for own, whole in zip(outputs, inputs, strict=True)
        ]
        _check_sizes(inputs, outputs, self._size)
        return self._queued(call, outputs, [whole for _, (whole, _) in operands])

    def _reduce_scatter_base(self, output: torch.Tensor, whole: torch.Tensor, options: Any = None) -> _Queued:
        return self.reduce_scatter_tensor_coalesced([output], [whole], options)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], options: Any = None
    ) -> _Queued:
        def call(stream: int) -> None:
            for to, (numbers, operation) in operands:
                self._ranks.reduce(numbers, to, stream, operation)

        operands: list[tuple[int, tuple[torch.Tensor, Operation]]] = []
        for output, parts in zip(outputs, inputs, strict=True):
            output.copy_(parts[self._rank])
            for to, part in enumerate(parts):
                operands.append((to, _operand(output if to == self._rank else part.clone(), options)))
        return self._queued(call, outputs, [numbers for _, (numbers, _) in operands])

    # Copies.

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> _Queued:
        def call(stream: int) -> None:
            for each in tensors:
                self._ranks.broadcast(each, options.rootRank, stream)

        return self._queued(call, tensors)

    def allgather_into_tensor_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any = None
    ) -> _Queued:
        def call(stream: int) -> None:
            for whole, own in zip(outputs, parts, strict=True):
                self._ranks.gather(whole, own, stream)

        parts = [each.contiguous() for each in inputs]
        _check_sizes(outputs, parts, self._size)
        return self._queued(call, outputs, parts)

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, options: Any = None) -> _Queued:
        return self.allgather_into_tensor_coalesced([output], [own], options)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any = None
    ) -> _Queued:
        def call(stream: int) -> None:
            for row in outputs:
                for source, each in enumerate(row):
                    self._ranks.broadcast(each, source, stream)

        for row, own in zip(outputs, inputs, strict=True):
            row[self._rank].copy_(own)
        return self._queued(call, [each for row in outputs for each in row])

    def alltoall(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], options: Any = None
    ) -> _Queued:
        def call(stream: int) -> None:
            for other, (to, of) in enumerate(zip(sent, outputs, strict=True)):
                if other > self._rank:
                    self._pass(to, other, stream)
                if other != self._rank:
                    self._take(of, other, stream)
                if other < self._rank:
                    self._pass(to, other, stream)

        sent = [each.contiguous() for each in inputs]
        outputs[self._rank].copy_(sent[self._rank])
        return self._queued(call, outputs, sent)

    def alltoall_base(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        output_sizes: list[int],
        own_sizes: list[int],
        options: Any = None,
    ) -> _Queued:
        return self.alltoall(self._rows(output, output_sizes), self._rows(own, own_sizes))

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any) -> _Queued:
        def call(stream: int) -> None:
            if not is_root:
                self._pass(own, options.rootRank, stream)
                return
            for other, each in enumerate(outputs[0]):
                if other != self._rank:
                    self._take(each, other, stream)

        own, is_root = inputs[0].contiguous(), options.rootRank == self._rank
        if is_root:
            outputs[0][self._rank].copy_(own)
        return self._queued(call, outputs[0] if is_root else [], [own])

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], options: Any) -> _Queued:
        def call(stream: int) -> None:
            if not is_root:
                self._take(outputs[0], options.rootRank, stream)
                return
            for other, each in enumerate(sent):
                if other != self._rank:
                    self._pass(each, other, stream)

        is_root = options.rootRank == self._rank
        sent = [each.contiguous() for each in inputs[0]] if is_root else []
        if is_root:
            outputs[0].copy_(sent[self._rank])
        return self._queued(call, outputs, sent)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> _Queued:
        sent = [each.contiguous() for each in tensors]
        return self._queued(lambda stream: [self._pass(each, to, stream) for each in sent], [], sent)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> _Queued:
        return self._queued(lambda stream: [self._take(each, source, stream) for each in tensors], tensors)

    def barrier(self, options: Any = None) -> _Queued:
        """The host waits for it."""

        def finish() -> None:
            self._queues.finish(mark)
            if self._ranks.is_ended:
                raise PeerError("the group was given up during a barrier of the program")

        met = self._queues.allocate(1)
        work = self._queued(lambda stream: self._ranks.sum(met, stream), [met], finish=finish)
        mark = self._end.last
        return work

    # Newer names of torch.

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    @property
    def _ranks(self) -> Any:
        return self._end.communicator

    def _pass(self, memory: torch.Tensor, to: int, stream: int) -> None:
        if memory.numel():
            self._ranks.send(memory, to, stream)

    def _take(self, memory: torch.Tensor, source: int, stream: int) -> None:
        if memory.numel():
            self._ranks.receive(memory, source, stream)

    def _rows(self, tensor: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        """For or of each rank; without sizes they get as much."""
        if not sizes and tensor.shape[0] % self._size:
            raise ValueError(f"{tensor.shape[0]} rows cannot be divided among {self._size} ranks")
        return list(tensor.split(sizes or tensor.shape[0] // self._size))

    def _queued(
        self,
        call: Callable[[int], object],
        results: list[torch.Tensor],
        memory: Sequence[torch.Tensor] = (),
        finish: Callable[[], None] | None = None,
    ) -> _Queued:
        """`results` are written in place, `memory` is what else the calls read; who waits for them calls
        `finish`."""
        for each in results:
            if not each.is_contiguous():
                raise ValueError("what a collective writes to must be contiguous")
            _check_device(each, self._device)
        for each in memory:
            _check_device(each, self._device)
        end = self._end

        def together(stream: int) -> None:
            self._library.together([end.communicator], lambda: call(stream))

        try:
            end.last = self._queues.post(end.lane, [self._queues.mark()], together)
        except NcclError as error:
            raise PeerError(str(error)) from error
        self._let_go_of_done()
        number = next(self._count)
        self._held[number] = end.last, (results, memory)

        def on_waited() -> None:
            if finish is not None:
                finish()
            self._held.pop(number, None)

        return _Queued(self._queues, end.last, results, on_waited)

    def _let_go_of_done(self) -> None:
        if len(self._held) >= _MANY:
            for number, (mark, _) in list(self._held.items()):
                if self._queues.is_done(mark):
                    self._held.pop(number, None)


def _operand(tensor: torch.Tensor, options: Any) -> tuple[torch.Tensor, Operation]:
    """Tensor that NCCL reduces in its place, in the same memory, and the operation."""
    wanted = getattr(options, "reduceOp", options or dist.ReduceOp.SUM)
    found = [each for name, each in _OPERATIONS.items() if wanted == getattr(dist.ReduceOp, name)]
    if not found:
        raise ValueError(f"NCCL has no collective with {wanted}")
    (operation,) = found
    if tensor.dtype == torch.bool:
        return tensor.view(torch.uint8), _OF_BOOL.get(operation, operation)
    if tensor.is_complex() and operation not in (Operation.SUM, Operation.AVERAGE):
        raise ValueError(f"{operation.name.lower()} of complex numbers means nothing")
    return tensor, operation


def _check_device(tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.device.type != device.type:
        raise ValueError(
            f"a collective of a worker's ranks was given a tensor on {tensor.device}; it takes those on "
            f"their devices ({device.type})"
        )


def _check_sizes(wholes: Sequence[torch.Tensor], parts: Sequence[torch.Tensor], ranks: int) -> None:
    for whole, part in zip(wholes, parts, strict=True):
        if (whole.numel(), whole.dtype) != (ranks * part.numel(), part.dtype):
            raise ValueError(
                f"{ranks} parts of {part.numel()} {part.dtype} do not make {whole.numel()} of {whole.dtype}"
            )
