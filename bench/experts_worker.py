"""One worker of `python -m bench.experts --train`, which counts what it sends: see `train` there."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from recycle_runtime.experts.among_peers import AmongPeers
from recycle_runtime.experts.shared import Counted, SharedExperts
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.transport.interface import PeerSum
from recycle_runtime.worker.fixed_plan import FixedPlanWorker, join
from recycle_runtime.worker.options import WorkerOptions


def main(bundle: str, place: str, port: str, steps: str, device: str) -> None:
    """Train so many steps, and print what was counted as JSON."""
    pipeline, _, stage = place.partition(":")
    options = WorkerOptions(
        bundle,
        str(Path(__file__).parent / "programs" / "experts.py"),
        steps=int(steps),
        device=device,
        plan=0,
        worker=(int(pipeline), int(stage)),
        tp_rank=0,
        timeout=900.0,
    )
    torch.set_num_threads(1)
    found: dict[str, Any] = {"seconds": [], "losses": [], "dropped": 0, "choices": 0, "copied": 0}
    peers = [worker for worker in Bundle.read(bundle).workers(0) if worker[1] == options.worker[1]]
    _count_choices(found)
    store: Any = cast(Any, dist).TCPStore("127.0.0.1", int(port), is_master=False)
    worker = FixedPlanWorker(options, store, _counting(found, peers.index(options.worker), len(peers)))

    def report(made: Any) -> None:
        found["seconds"].append(made.seconds)
        found["losses"].append(made.loss)

    worker.train(report)
    worker.transport.barrier()
    layers = [layer for chunk in worker.chunks.values() for layer in chunk.expert_counts.layers]
    exchanges: list[Any] = [each.exchange for each in layers if isinstance(each.exchange, AmongPeers)]
    found["rows"] = sum(each.bytes_given for each in exchanges)
    print(json.dumps(found), flush=True)


def _count_choices(found: dict[str, Any]) -> None:
    """Counts that the runtime takes from layers once in a step."""
    take = SharedExperts.take_counts

    def counted(self: SharedExperts) -> Counted | None:
        taken = take(self)
        if taken is not None:
            found["dropped"] += int(taken.dropped)
            found["choices"] += int(taken.popularity.sum())
        return taken

    SharedExperts.take_counts = counted


def _counting(found: dict[str, Any], me: int, peers: int) -> Any:
    """A way to join whose transport counts bytes that this worker gives to peers: rows of tokens and
    weights."""

    def joined(*given: Any) -> Any:
        transport: Any = join(*given)
        start = transport.start_peer_sums

        def counted(chunk: int, sums: Sequence[PeerSum], **options: Any) -> Any:
            for each in sums:
                if each.sources == (me,):
                    takers = len(set(each.takers or range(peers)) - {me})
                    found["copied"] += each.tensor.nbytes * takers
            return start(chunk, sums, **options)

        transport.start_peer_sums = counted
        return transport

    return joined


if __name__ == "__main__":
    main(*sys.argv[1:])
