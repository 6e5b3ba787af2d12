"""torchft beside recyclec: figures, kills, and a run in which a stub stands for torchft."""

import argparse
import json
import subprocess
import sys
import textwrap
from itertools import count
from pathlib import Path

import pytest

from bench.beside_torchft import (
    VICTIMS,
    Contestant,
    Replicas,
    Timetable,
    merged,
    run_torchft,
    used_on_mig_devices,
)
from bench.beside_torchft_figures import (
    LEFT_OUT,
    RECYCLEC,
    TORCHFT,
    WORKERS,
    DeviceMemory,
    Disturbance,
    Figure,
    Kill,
    Record,
    Step,
    disturbances,
    read_record,
    report,
    step_seconds,
)
from bench.report import ROOT
from bench.torchft_replica import PER_STEP, SHARE, ReplicaRow, Share

STUB = """
    import os, threading, time
    from contextlib import nullcontext
    from pathlib import Path

    from torch import nn

    FOLDER = Path(os.environ["TORCHFT_STUB"])

    class ProcessGroupGloo:
        def __init__(self, timeout):
            pass

    class Manager:
        def __init__(self, *, pg, min_replica_size, load_state_dict, state_dict, replica_id, timeout,
                     quorum_timeout, rank, world_size, store_addr, store_port, lighthouse_addr, init_sync):
            self.path = FOLDER / f"{replica_id}{os.getpid()}"
            threading.Thread(target=self.beat, daemon=True).start()
            time.sleep(0.2)
            self.healing = (FOLDER / "step").exists()
            self.step = 0

        def beat(self):
            while True:
                self.path.touch()
                time.sleep(0.05)

        def begin(self):
            alive = [path for path in FOLDER.glob("replica*") if time.time() - path.stat().st_mtime < 1]
            self.participants = len(alive) - self.healing

        def commit(self):
            time.sleep(0.05)
            self.step = int((FOLDER / "step").read_text() or 0) if self.healing else self.step + 1
            (FOLDER / "step").write_text(str(self.step))

        def current_step(self):
            return self.step

        def is_participating(self):
            was, self.healing = self.healing, False
            return not was

        def num_participants(self):
            return self.participants

    class DistributedDataParallel(nn.Module):
        def __init__(self, manager, module, broadcast_buffers):
            super().__init__()
            self.module = module

        def forward(self, value):
            return self.module(value)

        def no_sync(self):
            return nullcontext()

    class Optimizer:
        def __init__(self, manager, optimizer):
            self.manager, self.optimizer = manager, optimizer

        def zero_grad(self):
            self.manager.begin()
            self.optimizer.zero_grad()

        def step(self):
            self.optimizer.step()
            self.manager.commit()
"""
COORDINATION = """
    class LighthouseServer:
        def __init__(self, bind, min_replicas, join_timeout_ms, quorum_tick_ms, heartbeat_timeout_ms):
            pass

        def address(self):
            return "http://somewhere:1"
"""


def steps_at(times: list[float], workers: int = WORKERS, first: int = 0) -> list[Step]:
    return [Step(at, first + index, 3.0, 12 * workers, workers) for index, at in enumerate(times)]


def disturbed() -> Record:
    """Steps of 0.1 s; a kill at 2.02 stops training until 3.5, five workers go on, the sixth is back at 5."""
    before = steps_at([0.1 * step for step in range(1, 21)])
    fewer = steps_at([3.5 + 0.1 * step for step in range(15)], 5, 20)
    after = steps_at([5.3 + 0.1 * step for step in range(18)], WORKERS, 35)
    return Record(TORCHFT, 0.0, (*before, *fewer, *after), (Kill(2.02, 2),))


def test_a_disturbance_is_seen_in_the_times_between_steps() -> None:
    record = disturbed()
    assert step_seconds(record) == pytest.approx(0.1)
    (found,) = disturbances(record)
    assert found == pytest.approx(
        Disturbance(
            pause=1.5,
            pace_back=3.5 - 2.02,
            worker_back=5.3 - 2.02,
            longest_later=0.4,
            rate_without=(15 * 60 + 72) / (5.3 - 2.02),
            rate_after=720.0,
        )
    )


def test_steps_that_were_complete_before_the_kill_was_noticed_are_no_pause() -> None:
    before = steps_at([0.1 * step for step in range(1, 21)])
    late = steps_at([2.1, 2.2, 2.3, 2.4], WORKERS, 20)
    fewer = steps_at([4.0, 4.1, 4.2, 4.3, 4.4], 5, 24)
    record = Record(RECYCLEC, 0.0, (*before, *late, *fewer), (Kill(2.02, 2),))
    (found,) = disturbances(record)
    assert found.pause == pytest.approx(1.6)
    assert found.pace_back == pytest.approx(1.98)
    assert found.worker_back is None and found.rate_after is None


def test_a_kill_that_nobody_survives_is_no_disturbance() -> None:
    steps = steps_at([0.1 * step for step in range(1, 21)])
    assert disturbances(Record(TORCHFT, 0.0, tuple(steps), (Kill(2.5, 0),))) == []
    assert disturbances(Record(TORCHFT, 0.0, tuple(steps[:LEFT_OUT]), (Kill(0.2, 0),))) == []


def test_a_step_has_the_samples_of_its_participants() -> None:
    rows = [
        ReplicaRow(1.0, 0, True, True, 2, 4.0, 12),
        ReplicaRow(1.1, 0, True, True, 2, 2.0, 12),
        ReplicaRow(2.0, 1, False, True, 2, 4.0, 12),
        ReplicaRow(3.0, 1, True, True, 1, 5.0, 12),
        ReplicaRow(3.0, 0, True, False, 1, 9.0, 12),
    ]
    assert merged(rows) == [Step(1.1, 0, 3.0, 24, 2), Step(3.0, 1, 5.0, 12, 1)]


def test_replicas_share_the_micro_batches_of_a_step() -> None:
    shares = [Share(((item, item) for item in count()), replica) for replica in range(WORKERS)]
    for step in (0, 1, 1, 7):
        drawn = [value for share in shares for value, _ in share.of(step)]
        assert drawn == list(range(step * PER_STEP, (step + 1) * PER_STEP))
    assert len(shares[0].of(7)) == SHARE


def test_the_better_one_is_named_unless_they_are_close() -> None:
    assert Figure("pause", "{}", True, 1.0, 2.0).better == TORCHFT
    assert Figure("rate", "{}", False, 1.0, 2.0).better == RECYCLEC
    assert Figure("rate", "{}", False, 1.0, 1.01).better is None
    assert Figure("kills", "{}", None, 1.0, 2.0).better is None
    assert Figure("memory", "{}", True, None, 2.0).better is None


def test_memory_in_use_is_read_for_each_mig_device() -> None:
    device = "<mig_device><fb_memory_usage><used>{}</used></fb_memory_usage></mig_device>"
    devices = "".join(map(device.format, ("12 MiB", "N/A", "700 MiB")))
    xml = f"<log><gpu><fb_memory_usage><used>9999 MiB</used></fb_memory_usage>{devices}</gpu></log>"
    assert used_on_mig_devices(xml) == [12 << 20, 700 << 20]


def test_kills_come_at_equal_intervals_and_leave_time_for_the_last_return() -> None:
    timetable = Timetable(seconds=30.0, every=10.0, start_up=5.0)
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        pids = {VICTIMS[1]: sleeper.pid}
        first = timetable.started + 4
        assert timetable.look(first + 100, lambda: pids) is None
        timetable.first_step = first
        assert timetable.look(first + 9.9, lambda: pids) is None
        kill = timetable.look(first + 10, lambda: pids)
        assert kill is not None and kill.worker == VICTIMS[1]
        assert sleeper.wait() == -9
    assert timetable.look(first + 20, lambda: pids) is not None
    assert timetable.look(first + 30, lambda: pids) is None
    assert [timetable.is_over(first + seconds) for seconds in (29.9, 30.1)] == [False, True]


def test_the_report_says_where_each_is_better(tmp_path: Path) -> None:
    torchft = disturbed()._replace(memory=DeviceMemory(3 << 30, 4 << 30, 5 << 30), ended_by_themselves=1)
    steps = tuple(Step(0.05 * number, number, 3.0, 72, WORKERS) for number in range(1, 100))
    recyclec = Record(RECYCLEC, 0.0, steps, (), 0, DeviceMemory(4 << 30, 4 << 30, 7 << 30), "it broke")
    for record in (torchft, recyclec):
        record.save(tmp_path)
        assert read_record(tmp_path, record.name) == record
    (tmp_path / "compile.json").write_text(json.dumps({"seconds": 4.0}))
    text = report(tmp_path)
    for line in (
        "| step before the first kill (median) | 100.0 ms | 50.0 ms |",
        "| pause after a kill (median) | 1.50 s | not measured |",
        "| steps with fewer samples | 15 | 0 |",
        "| samples left out of their step | 180 | 0 |",
        "- planning beforehand: 0.00 s, recyclec 4.00 s",
        "- most memory in use on a device, by nvidia-smi: 5.00 GiB, recyclec 7.00 GiB",
        "- worker processes that ended by themselves: 0, torchft 1",
        "recyclec: it broke",
    ):
        assert line in text.splitlines()
    assert text.index("torchft is better than recyclec in:") < text.index(
        "recyclec is better than torchft in:"
    )


def test_without_torchft_there_is_an_error_at_once(tmp_path: Path) -> None:
    said = argparse.Namespace(
        folder=tmp_path, device="cpu", join_timeout=1, timeout=1.0, as_released=False, seconds=60.0,
        every=12.0, one_kill=False,
    )  # fmt: skip
    contestant = Contestant(TORCHFT, said)
    with contestant.ending:
        replicas = Replicas(contestant.here, [], said)
        contestant.ending.callback(replicas.close)
        found = run_torchft(contestant, replicas)
    assert found.error is not None and "did not start" in found.error
    assert read_record(tmp_path, TORCHFT) == found


@pytest.mark.slow
def test_both_train_through_a_kill(tmp_path: Path) -> None:
    stub = tmp_path / "site" / "torchft"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text(textwrap.dedent(STUB))
    (stub / "coordination.py").write_text(textwrap.dedent(COORDINATION))
    (tmp_path / "stub").mkdir()
    folder = tmp_path / "records"
    command = [sys.executable, "-m", "bench.beside_torchft"]
    subprocess.run([*command, "compile", str(folder)], check=True, cwd=ROOT)
    paths = ":".join((str(ROOT), str(ROOT / "runtime"), str(tmp_path / "site")))
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "TORCHFT_STUB": str(tmp_path / "stub")}
    options = ["--device", "cpu", "--seconds", "600", "--every", "5", "--one-kill"]
    subprocess.run([*command, "run", str(folder), *options], check=True, cwd=ROOT, env=environment)
    for name in (TORCHFT, RECYCLEC):
        record = read_record(folder, name)
        assert record.error is None and not record.ended_by_themselves
        assert len(record.kills) == 1
        assert [step.step for step in record.steps] == list(range(len(record.steps)))
        assert {step.workers for step in record.steps} >= {WORKERS - 1, WORKERS}
        (found,) = disturbances(record)
        assert found.worker_back is not None
    recyclec = read_record(folder, RECYCLEC)
    assert {step.samples for step in recyclec.steps} == {72}
    told = subprocess.run([*command, "report", str(folder)], check=True, cwd=ROOT, capture_output=True)
    assert "| workers killed | 1 | 1 |" in told.stdout.decode()
