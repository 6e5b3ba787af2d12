"""Links between processes with a device each, here over gloo."""

import os
import signal
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from recycle_runtime.cli.commands import profile as command
from recycle_runtime.devices import VARIABLE, Device
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.message_counts import most_waiting
from recycle_runtime.profiler import Options, profile
from recycle_runtime.profiler.grid_links import (
    GridShape,
    grid_links,
    neighbour_stream,
    ring_factor,
    sum_shape,
    transfer_shape,
)
from recycle_runtime.profiler.links import TokenRows
from recycle_runtime.profiler.meters import NOTHING, Timing
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program
from recycle_runtime.transport.nccl import ENVIRONMENT, NcclChannel, channels_of
from tests.runtime.nvidia_smi import H200, MIG, fake_nvidia_smi

LAYERED = Path(__file__).resolve().parents[3] / "tests" / "runtime" / "training" / "programs" / "layered.py"


def devices(count: int) -> tuple[Device, ...]:
    return tuple(Device(str(number), str(number)) for number in range(count))


@pytest.mark.parametrize(
    ("stages", "pipelines", "count", "for_transfers", "for_sums"),
    [
        (2, 3, 6, (2, 3), (2, 3)),
        (2, 3, 7, (2, 3), (2, 3)),
        (4, 3, 6, (4, 1), (2, 3)),
        (2, 8, 4, (2, 2), (1, 4)),
        (8, 1, 2, (2, 1), (2, 1)),
        (1, 4, 4, (1, 4), (1, 4)),
        (None, 3, 7, (2, 3), (2, 3)),
        (None, 2, 8, (2, 2), (4, 2)),
    ],
)
def test_grids_are_like_the_job_as_far_as_there_are_devices(
    stages: int | None,
    pipelines: int,
    count: int,
    for_transfers: tuple[int, int],
    for_sums: tuple[int, int],
) -> None:
    assert transfer_shape(stages, pipelines, count) == for_transfers
    assert sum_shape(stages, pipelines, count) == for_sums


def test_more_peers_take_longer() -> None:
    assert ring_factor(3, 3) == 1
    assert ring_factor(4, 2) == 1.5


def test_a_worker_has_a_channel_in_each_direction_to_each_neighbour() -> None:
    shape = GridShape(3, 2)
    middle = neighbour_stream(shape, (1, 1))
    assert channels_of(middle, (1, 1), 2) == [
        NcclChannel((1, 0), (1, 1)),
        NcclChannel((1, 1), (1, 0)),
        NcclChannel((1, 1), (1, 2)),
        NcclChannel((1, 2), (1, 1)),
    ]
    assert most_waiting(middle, 2) == {(1, 0): 1, (1, 2): 1}
    first = [each.opcode for each in neighbour_stream(shape, (0, 0))]
    assert first == [Opcode.SEND_ACTIVATION, Opcode.RECV_GRADIENT, Opcode.BACKWARD]
    assert neighbour_stream(GridShape(1, 2), (0, 0)) == []


@pytest.mark.parametrize(
    ("count", "for_sums"), [(2, "1 x 2"), pytest.param(4, "2 x 2", marks=pytest.mark.slow)]
)
def test_links_of_a_grid_are_measured_together_while_all_processes_live(count: int, for_sums: str) -> None:
    before = set(active_children())
    with (
        pytest.raises(ProgramError, match="a process that measures links has ended"),
        grid_links("cpu", devices(count), 2, 2) as links,
    ):
        receive = links.waiting_receive(1000)
        assert receive is not None and links.waiting_receive(0) is None
        for _ in range(2):
            with receive():
                pass
        first, last = links.transfers([100_000, 0], 2)
        assert (first.median > 0, last) == (True, NOTHING)
        assert all(timing.median > 0 for timing in links.reductions([1 << 16, 1 << 10], 2, 2))
        assert links.reductions([1 << 16, 0], 2, 1)[1] == NOTHING
        assert links.reductions([1 << 16], 1, 1) == [NOTHING]
        rows = [TokenRows(7, 4, torch.bfloat16), TokenRows(1000, 64, torch.float32)]
        exchanges = links.exchanges([rows, [], rows], 3, 2)
        assert [timing.median > 0 for timing in exchanges] == [True, False, True]
        assert links.exchanges([rows], 1, 2) == links.exchanges([[]], 2, 2) == [NOTHING]
        assert links.how["reduce_measured"].endswith(f"those of all stages at once: {for_sums} processes")
        child = max(set(active_children()) - before, key=lambda each: each.name)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        links.transfers([1000], 1)


def test_a_profile_says_that_links_lie_between_devices() -> None:
    measured = profile(load_program(LAYERED), Options(None, repeat=1, pipelines=2, devices=devices(2)))
    assert all(layer.transfer.median > 0 for layer in measured.stages[:-1])
    assert sum(layer.reduce.median for layer in measured.stages) > 0
    assert "in 1 pipelines at once" in measured.details["transfer_measured"]
    assert measured.details["ops_measured"].endswith("by the time in which messages cross; layers alone")
    assert all(layer.beside_message is None for layer in measured.stages)


def test_ops_of_stages_are_slowed_by_messages_as_long_as_they_cross() -> None:
    measured = profile(load_program(LAYERED), Options(2, repeat=1, pipelines=1, devices=devices(2)))
    assert all(stage.beside_message is not None for stage in measured.stages)
    alone = Timing(100, 90, 110)
    costs = replace(
        measured.stages[0],
        forward=alone,
        backward_input=alone,
        backward_weight=alone,
        backward=alone.scaled(2),
        beside_message=(alone.scaled(1.4), alone.scaled(1.2), alone.scaled(1.4), alone.scaled(3)),
    )
    half = costs.slowed(200)
    assert [half.forward.median, half.backward_input.median, half.backward.median] == [120, 110, 250]
    assert costs.slowed(0) == costs
    assert costs.slowed(1000).forward == alone.scaled(1.4)


@pytest.mark.parametrize(
    ("listing", "setting", "found"), [(MIG, None, 3), (H200, None, 0), (MIG, "MIG-3a", 0)]
)
def test_devices_of_ones_own_are_wanted_for_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str, setting: str | None, found: int
) -> None:
    fake_nvidia_smi(tmp_path, listing)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in (VARIABLE, *ENVIRONMENT):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if setting is not None:
        monkeypatch.setenv(VARIABLE, setting)
    own = command._own_devices()  # pyright: ignore[reportPrivateUsage]
    assert len(own) == found
    assert os.environ.get(VARIABLE) == (own[0].name if own else setting)
    assert set(ENVIRONMENT) <= set(os.environ) if own else set(ENVIRONMENT).isdisjoint(os.environ)
