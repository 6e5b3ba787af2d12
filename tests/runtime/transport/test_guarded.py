"""Errors that may be the fault of another process."""

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.transport.guarded import PeerError, Waits, guarded, is_of_others


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (RuntimeError("Connection closed by peer"), True),
        (dist.DistBackendError("NCCL error: remote process exited"), True),
        (torch.OutOfMemoryError(), False),
        (NotImplementedError(), False),
        (ValueError("the program's"), False),
        (None, False),
    ],
)
def test_an_error_of_a_collective(error: BaseException | None, is_so: bool) -> None:
    assert is_of_others(error) == is_so


class Counted(Waits):
    waits = 0

    def begin(self) -> None:
        self.waits += 1

    def end(self) -> None:
        self.waits -= 1


def test_what_goes_wrong_while_another_is_waited_for_is_a_peer_error() -> None:
    waits = Counted()

    def fail() -> None:
        assert waits.waits == 1
        raise dist.DistBackendError("NCCL error: remote process exited")

    with pytest.raises(PeerError, match="remote process exited"):
        guarded(fail, waits)
    assert waits.waits == 0
