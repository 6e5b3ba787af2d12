"""Processes of a job of torchft, for `bench.beside_torchft`: its lighthouse, and one replica.

    python -m bench.torchft_replica lighthouse --join-timeout MS     prints its address
    python -m bench.torchft_replica replica --folder DIR --number N --start K --address URL --device cuda

A replica holds the whole model, takes its share of the micro-batches of every step, and writes a row for each
step that it has made to DIR/rows-N-K.jsonl. torchft 0.2.0 must be importable.
"""

import argparse
import importlib
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

REPLICAS = 6
PER_STEP = 18
"""Micro-batches of a step, of all replicas together."""
SHARE = PER_STEP // REPLICAS
QUORUM_TIMEOUT = timedelta(seconds=30)


class ReplicaRow(NamedTuple):
    """A step that a replica has made."""

    at: float
    """Seconds of the machine's monotonic clock."""
    step: int
    is_committed: bool
    is_participating: bool
    """False while the replica gets the state of another one."""
    participants: int
    loss: float
    """Mean over its own micro-batches."""
    samples: int
    """In these."""


class Share:
    """Micro-batches of one replica, by step. Steps come one after another, or once more."""

    def __init__(self, batches: Iterator[tuple[Any, Any]], replica: int) -> None:
        self._batches, self._replica = batches, replica
        self._drawn, self._step = 0, -1
        self._items: list[tuple[Any, Any]] = []

    def of(self, step: int) -> list[tuple[Any, Any]]:
        if step != self._step:
            first = step * PER_STEP + self._replica * SHARE
            skipped = first - self._drawn
            self._items = list(itertools.islice(self._batches, skipped, skipped + SHARE))
            self._step, self._drawn = step, first + SHARE
        return self._items


def lighthouse(join_timeout: int) -> None:
    """The process through which replicas agree who takes part in a step."""
    coordination: Any = importlib.import_module("torchft.coordination")
    server = coordination.LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=join_timeout,
        quorum_tick_ms=100,
        heartbeat_timeout_ms=3000,
    )
    print(f"http://127.0.0.1:{server.address().rpartition(':')[2]}", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)


def mended(parallel: Any) -> Any:
    """torchft's DistributedDataParallel without a known error (pull request 294 of torchft): when an
    all-reduce fails on the host, its hook expects a future that is not there, and every survivor ends."""
    import torch

    def hook(state: Any, bucket: Any) -> Any:
        work = state.allreduce(bucket.buffer())
        work.wait()
        future = getattr(work.get_future(), "_fut", None)
        if future is None:
            # The error has been reported to the manager, so the step will not be committed.
            future = torch.futures.Future[torch.Tensor]()
            future.set_result(bucket.buffer())
        return future

    # Torch refuses hooks with other annotations than its own.
    hook.__annotations__.clear()
    return type("Mended", (parallel,), {"_comm_hook": staticmethod(hook)})


class Replica:
    """The plain loop of one device, with what torchft's documentation asks for around it."""

    def __init__(
        self, program: Path, number: int, address: str, device: str, timeout: timedelta, as_released: bool
    ) -> None:
        """`timeout`: of an operation such as an all-reduce."""
        import torch
        import torch.distributed as dist

        from recycle_runtime.execution.chunk import build_module
        from recycle_runtime.program.loading import load_program

        torchft: Any = importlib.import_module("torchft")
        self._torch, self._is_cuda = torch, device == "cuda"
        self._device = torch.device("cuda", 0) if self._is_cuda else torch.device("cpu")
        if self._is_cuda:
            torch.cuda.set_device(self._device)
        else:
            torch.set_num_threads(1)
        self._program = load_program(str(program))
        model = build_module(self._program, 0, 1, 0).to(self._device)
        self._parameters = list(model.parameters())
        inner = self._program.optimizer(self._parameters)
        self._share = Share(iter(self._program.batches(0)), number)

        def load(state: dict[str, Any]) -> None:
            model.load_state_dict(state["model"])
            inner.load_state_dict(state["optimizer"])

        # torchrun would have made the replica's store.
        self._store: Any = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            "127.0.0.1", 0, is_master=True, wait_for_workers=False
        )
        group = torchft.ProcessGroupNCCL if self._is_cuda else torchft.ProcessGroupGloo
        self._manager = torchft.Manager(
            pg=group(timeout=timeout),
            min_replica_size=1,
            load_state_dict=load,
            state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
            replica_id=f"replica{number}_",
            timeout=timeout,
            quorum_timeout=QUORUM_TIMEOUT,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self._store.port,
            lighthouse_addr=address,
            # All replicas build the same weights from the same seed.
            init_sync=False,
        )
        parallel = torchft.DistributedDataParallel if as_released else mended(torchft.DistributedDataParallel)
        # Buffers are constant tables.
        self._model = parallel(self._manager, model, broadcast_buffers=False)
        self._optimizer = torchft.Optimizer(self._manager, inner)

    def step(self) -> ReplicaRow:
        """One step; gradients are summed over replicas in the backward of the last micro-batch."""
        torch, manager = self._torch, self._manager
        step = manager.current_step()
        self._optimizer.zero_grad()
        total = torch.zeros((), device=self._device)
        items = self._share.of(step)
        for index, (value, target) in enumerate(items):
            with nullcontext() if index + 1 == len(items) else self._model.no_sync():
                with self._program.precision.computing(self._device):
                    output = self._model(self._on_device(value))
                    loss = self._program.loss(output, self._on_device(target)) / len(items)
                torch.autograd.backward(loss)
            total += loss.detach()
        if self._program.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._program.clip_norm)
        self._optimizer.step()
        # Waits until the device has made the step.
        mean = float(total)
        return ReplicaRow(
            time.monotonic(),
            step,
            manager.current_step() == step + 1,
            manager.is_participating(),
            manager.num_participants(),
            mean,
            sum(len(value) for value, _ in items),
        )

    def _on_device(self, value: Any) -> Any:
        return value.pin_memory().to(self._device, non_blocking=True) if self._is_cuda else value


def train(folder: Path, number: int, start: int, replica: Replica) -> None:
    """Until the parent process has ended. The first replicas wait for each other."""
    parent = os.getppid()
    (folder / f"ready-{number}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    with (folder / f"rows-{number}-{start}.jsonl").open("w", encoding="utf-8") as rows:
        while os.getppid() == parent:
            rows.write(json.dumps(replica.step()) + "\n")
            rows.flush()
    # Threads of torchft would go on.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("lighthouse", "replica"))
    parser.add_argument("--join-timeout", type=int, default=1000, metavar="MS")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--number", type=int)
    parser.add_argument("--start", type=int, help="how many replicas have been started before")
    parser.add_argument("--address", help="of the lighthouse")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--as-released", action="store_true", help="do not mend a known error")
    said = parser.parse_args()
    if said.what == "lighthouse":
        lighthouse(said.join_timeout)
    else:
        program = said.folder / "program.py"
        timeout = timedelta(seconds=said.timeout)
        replica = Replica(program, said.number, said.address, said.device, timeout, said.as_released)
        train(said.folder, said.number, said.start, replica)


if __name__ == "__main__":
    main()
