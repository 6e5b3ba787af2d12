"""Communication of workers: messages between neighbours, sums among peers. One interface, several transports.

On every ordered pair of workers messages arrive in the order in which they were sent; there are no tags.
Sends and receives are posts: they return at once, and `wait` on what they return ends when the message is
there, or gone.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle


class TensorSpec(NamedTuple):
    """Shape and type of a tensor, before it has arrived."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TensorSpec":
        return cls(tuple(tensor.shape), tensor.dtype)


class Pending(Protocol):
    """Something that was started."""

    def wait(self) -> object: ...


class Arrival(Protocol):
    """A message that was asked for."""

    def wait(self) -> list[torch.Tensor]: ...


class PeerSum(NamedTuple):
    """A tensor that some holders of a chunk add up, and that some of them get, in place.

    Holders have numbers, in the order of `Grid.holders`; where none is named, all are meant. Sources are all,
    or one: then it is a copy. In the memory of holders that are not among the takers, anything may be left.
    """

    tensor: torch.Tensor
    sources: tuple[int, ...] = ()
    takers: tuple[int, ...] = ()

    @property
    def is_copy(self) -> bool:
        return len(self.sources) == 1


class Transport(Protocol):
    """Communication of a worker with the other workers."""

    tensor_group: Any
    """The process group of this worker's tensor-parallel processes, None if there is only one."""

    @property
    def broken_sums(self) -> frozenset[int]:
        """Chunks of which a sum was cut off by an abort without an error. Known once the group is left."""
        ...

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        """Post a message. Its tensors are held, and must not change, until `flush`, or `wait` on what this
        gives; None if nothing is held."""
        ...

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        """Post the receive of a message that looks like this."""
        ...

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        """Start to sum a tensor over the live holders of a chunk, in place; None if nothing is waited for.

        All of them start the sums of a chunk in the same order. In place of a chunk, `grid.tied_sum` stands
        for all chunks that are tied.
        """
        ...

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        """Start several sums among the holders of a chunk, which all of them name alike; takers of one sum
        get the same bits. Their memory is held until `wait` on what this gives. `goes_on`: they belong to the
        same step as those before. `after`: a mark of work of the device (`device_copies.mark_on`) that makes
        these tensors; by default, all that is queued now."""
        ...

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        """Start to sum a small tensor over all workers, in place."""
        ...

    def barrier(self) -> None:
        """Wait until every worker is here."""
        ...

    def flush(self) -> None:
        """Wait until everything that was sent is on its way, and let go of it."""
        ...

    def close(self) -> None:
        """Leave; processes that still wait for this worker get an error."""
        ...


class SumGroup(NamedTuple):
    """Processes that sum gradients of a chunk, or of tied ones, for one tensor-parallel rank of the job."""

    number: int
    """By which a transport knows the sum."""
    name: str
    """The same for all of them."""
    place: int
    """A number that no other group has, the same for all of them."""
    ranks: list[int]


class Grid:
    """Ranks and chunks of live workers, each of them `tensor` processes.

    A worker that has lost ranks has fewer processes. Each of them stands for several of the `tensor` ranks,
    which follow each other, and is called by the first.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        tensor: int,
        pipelines: int,
        chunk_stages: Sequence[int] | None = None,
        tied_chunks: Sequence[int] = (),
        groups: Sequence[Sequence[int]] = (),
        *,
        has_shards: bool = False,
        fewer: Mapping[Worker, int] | None = None,
    ) -> None:
        """`has_shards`: holders of a chunk send each other parts of it; `fewer`: numbers of processes of the
        workers that have lost ranks."""
        self.workers = tuple(workers)
        self.tensor, self.has_shards = tensor, has_shards
        self.pipelines = pipelines
        """Of the whole job, failed workers included: neighbours in streams have numbers that depend on it."""
        stages = 1 + max((stage for _, stage in self.workers), default=-1)
        self.chunk_stages = tuple(range(stages) if chunk_stages is None else chunk_stages)
        """The stage whose workers hold each chunk; without it, chunk c is on stage c."""
        self._stages_of_sums = [set(stages) for stages in zip(*(groups or (self.chunk_stages,)), strict=True)]
        """Stages whose workers sum gradients together: those of each chunk, and those of all tied chunks."""
        self.tied_sum: int | None = None
        """The number of the sum over the holders of all tied chunks, beyond those of the chunks."""
        if tied_chunks:
            self.tied_sum = len(self.chunk_stages)
            self._stages_of_sums.append({self.chunk_stages[chunk] for chunk in tied_chunks})
        self._fewer = dict(fewer or {})
        counts = [self._fewer.get(worker, tensor) for worker in self.workers]
        self._first = dict(zip(self.workers, accumulate(counts, initial=0), strict=False))
        """Of each worker the rank of its first process among all."""
        self.size = sum(counts)

    def stands_for(self, worker: Worker) -> int:
        """Of how many tensor-parallel ranks each process of a worker takes the place."""
        return self.tensor // self._fewer.get(worker, self.tensor)

    def rank(self, worker: Worker, tp_rank: int) -> int:
        """Of the process of a worker that stands for this tensor-parallel rank, among all processes."""
        return self._first[worker] + tp_rank // self.stands_for(worker)

    def tensor_ranks(self, worker: Worker) -> list[int]:
        """Of all processes of a worker."""
        return [self.rank(worker, tp_rank) for tp_rank in range(0, self.tensor, self.stands_for(worker))]

    def receivers(self, worker: Worker, tp_rank: int, to: Worker) -> list[int]:
        """The processes of another worker that get the messages of one process: each gets them from the one
        that stands for its own first rank."""
        own = range(tp_rank, tp_rank + self.stands_for(worker))
        return [self.rank(to, each) for each in own if each % self.stands_for(to) == 0]

    @property
    def sums(self) -> int:
        """Number of different sums of gradients."""
        return len(self._stages_of_sums)

    def holders(self, chunk: int) -> list[Worker]:
        """The live workers that have a copy of a chunk; of the sum of tied chunks, of any of them."""
        return [worker for worker in self.workers if worker[1] in self._stages_of_sums[chunk]]

    def sum_groups(self, worker: Worker, tp_rank: int) -> list[SumGroup]:
        """Those that a process takes part in: of each sum one for every rank that it stands for. Those of the
        first have the numbers of the sums, and those of each further one as many more."""
        return [
            SumGroup(
                number + beside * self.sums,
                f"{number}/{tp_rank + beside}",
                number * self.tensor + tp_rank + beside,
                [self.rank(holder, tp_rank + beside) for holder in self.holders(number)],
            )
            for number in self.sums_of(worker)
            for beside in range(self.stands_for(worker))
        ]

    @property
    def has_peers(self) -> bool:
        """True if any worker sums gradients with others."""
        return any(len(self.holders(number)) > 1 for number in range(self.sums))

    def sums_of(self, worker: Worker) -> list[int]:
        """Those that a worker takes part in: of its chunks, and of tied ones if it holds such."""
        return [number for number, stages in enumerate(self._stages_of_sums) if worker[1] in stages]


def grid_of(bundle: Bundle, workers: Sequence[Worker], fewer: Mapping[Worker, int] | None = None) -> Grid:
    """These workers of a job, as its bundle has them; some may have `fewer` ranks."""
    return Grid(
        workers,
        bundle.tensor,
        bundle.pipelines,
        bundle.chunk_stages,
        bundle.tied_chunks,
        bundle.groups,
        has_shards=bundle.owners > 0,
        fewer=fewer,
    )
