"""One GPU for each process, one for all of them, or an error that says what there is."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch.distributed as dist

from recycle_runtime.protocol.remote_store import StoreError
from recycle_runtime.transport.choose import Place, PlacementError, Way, choose_way, decide, local_device
from tests.runtime.transport.workers import in_threads

SECOND = timedelta(seconds=1)


def test_a_gpu_for_each_on_one_host_or_several() -> None:
    assert decide([Place("a", f"GPU-{n}") for n in range(4)]) is Way.NCCL
    assert decide([Place(f"host{n // 2}", f"GPU-{n}") for n in range(4)]) is Way.NCCL


def test_one_gpu_for_all() -> None:
    assert decide([Place("a", "GPU-0")] * 12) is Way.SHARED_GPU


def test_one_process_has_its_own_gpu() -> None:
    assert decide([Place("a", "GPU-0")]) is Way.NCCL


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (
            [Place("a", "GPU-0"), Place("a", "GPU-1"), Place("a", "GPU-0")],
            "3 processes have 2 different GPUs on 1 hosts: GPU-0 on a: rank 0, 2; GPU-1 on a: rank 1",
        ),
        (
            [Place("a", "GPU-0"), Place("b", "GPU-0")],
            "2 processes have 1 different GPUs on 2 hosts: GPU-0 on a: rank 0; GPU-0 on b: rank 1",
        ),
        ([Place("a", f"GPU-{n // 2}") for n in range(20)], "GPU-7 on a: rank 14, 15; and 2 more\nhint: "),
    ],
)
def test_anything_else_is_refused(places: list[Place], said: str) -> None:
    with pytest.raises(PlacementError) as caught:
        decide(places)
    assert said in str(caught.value)
    assert "CUDA_VISIBLE_DEVICES" in str(caught.value)


def choose_together(places: list[Place]) -> list[Way | str]:
    store, said = dist.HashStore(), dict[int, Way | str]()

    def ask(rank: int) -> None:
        try:
            said[rank] = choose_way(store, "first", rank, len(places), places[rank], SECOND * 30)
        except PlacementError as error:
            said[rank] = str(error)

    tasks: list[Callable[[], None]] = [lambda rank=rank: ask(rank) for rank in range(len(places))]
    in_threads(tasks)
    return [said[rank] for rank in range(len(places))]


def test_everyone_hears_the_same() -> None:
    assert choose_together([Place("a", f"GPU-{n}") for n in range(5)]) == [Way.NCCL] * 5
    assert choose_together([Place("a", "GPU-0")] * 5) == [Way.SHARED_GPU] * 5
    answers = choose_together([Place("a", "GPU-0"), Place("a", "GPU-0"), Place("a", "GPU-1")])
    assert len(set(answers)) == 1
    assert "3 processes have 2 different GPUs" in str(answers[0])


def test_processes_that_never_come_are_named() -> None:
    store = dist.HashStore()
    store.set("first/places/1", '["a", "GPU-1"]')
    with pytest.raises(PlacementError, match=r"2 of 4 processes .*: ranks 2, 3"):
        choose_way(store, "first", 0, 4, Place("a", "GPU-0"), timedelta(milliseconds=20))


class Refusing(dist.Store):
    """As the coordinator's, when the workers are being regrouped."""

    def set(self, key: str, value: str | bytes) -> None: ...

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        raise StoreError("refused")


def test_a_refusal_is_nobodys_delay() -> None:
    store = Refusing()
    with pytest.raises(StoreError, match="refused"):
        choose_way(store, "first", 0, 4, Place("a", "GPU-0"), SECOND * 30)


def test_gpus_go_round() -> None:
    assert local_device(3, 1) == "cuda"
    assert [local_device(number, 4) for number in range(6)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cuda:3",
        "cuda:0",
        "cuda:1",
    ]
