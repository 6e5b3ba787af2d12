"""Whole runs on six devices with NCCL between them: whatever fails, the parameters are those of one process.

    python -m bench.mig python -m pytest tests/runtime/over_nccl

divides one GPU into devices for them. Elsewhere they are skipped; with RECYCLE_TEST_DEVICE=cpu they run over
gloo, which shows whether the tests themselves are right, and with RECYCLE_TEST_DEVICE=shared all workers
share one GPU.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.devices import DevicesError, worker_devices
from recycle_runtime.launcher.local import RunOptions, run_local
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from tests.runtime.over_nccl.plans import GROUPS, plan
from tests.runtime.recovery.sliced import SLICED, check_slices
from tests.runtime.recovery.watched import TINY, Outcome, check, check_close, run, saved_models
from tests.runtime.trainer.plainly import train_plainly
from tests.runtime.trainer.test_scripts import LOOP, records
from tests.runtime.trainer.test_scripts import check as check_seen
from tests.runtime.training.alone import train_alone
from tests.runtime.training.example_programs import EXAMPLES, MLP, changed

STAGES, PER_STEP = 2, 12
PROGRAMS = Path(__file__).resolve().parents[1] / "recovery" / "programs"
SHARED_EXPERTS = str(PROGRAMS.parents[1] / "training" / "programs" / "shared_experts.py")
PARALLELIZED = str(PROGRAMS.parents[1] / "training" / "programs" / "parallelized.py")


_SETTING = os.environ.get("RECYCLE_TEST_DEVICE", "cuda")
DEVICE = "cuda" if _SETTING == "shared" else _SETTING


def why_not() -> str | None:
    if DEVICE == "cpu":
        return None
    try:
        devices = worker_devices(6)
    except DevicesError as error:
        return str(error).partition("\n")[0]
    if devices.is_shared == (_SETTING == "shared"):
        return None
    return "one GPU for all workers: nothing goes over NCCL" if devices.is_shared else "one for each worker"


_WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(_WHY_NOT is not None, reason=f"needs six devices: {_WHY_NOT}")


def train(folder: Path, name: str, program: str, steps: int, faults: Sequence[str], **more: Any) -> Outcome:
    folder.mkdir(exist_ok=True)
    options: dict[str, Any] = {"device": DEVICE, "heartbeat_timeout": 2.0} | more
    outcome = run(folder / "run", plan(name, folder), program, steps, list(faults), **options)
    for row in outcome.recoveries:
        parts = f"detection {row.detection:.3f}, regroup {row.regroup:.3f}, total {row.total:.3f} s"
        print(f"step {row.step}: {parts}: {', '.join(row.causes)}")
    print([event[:200] for event in outcome.events if "op times" not in event])
    print((folder / "run" / "stderr").read_text(errors="replace")[-8000:])
    return outcome


def check_tiny(folder: Path, outcome: Outcome, program: str, live: int) -> None:
    check(folder / "run", outcome, train_alone(program, STAGES, PER_STEP, len(outcome.rows)))
    assert outcome.rows[-1].live == live, "somebody healthy was taken for failed"


# Kills, wherever in the stream.


@pytest.mark.parametrize("positions", [(0, 5, 11), (2, 8, 14), (17, 23, 29), (20, 26, 31)])
def test_kills(tmp_path: Path, positions: tuple[int, ...]) -> None:
    workers = ("1:1", "0:0", "2:1")
    places = zip(workers, positions, strict=True)
    faults = [f"kill={worker}@{6 + 6 * n}.{at}" for n, (worker, at) in enumerate(places)]
    outcome = train(tmp_path, "staggered", TINY, 40, faults)
    assert len(outcome.faults) == 3
    check_tiny(tmp_path, outcome, TINY, 3)


def test_kills_with_barriers_and_two_at_once(tmp_path: Path) -> None:
    faults = ["kill=1:1@6.7", "kill=0:0@6.7", "kill=2:1@14.30"]
    check_tiny(tmp_path, train(tmp_path, "barrier", TINY, 40, faults), TINY, 3)


@pytest.mark.parametrize("name", ["sharded", "sharded_barrier"])
def test_kills_with_shards(tmp_path: Path, name: str) -> None:
    """One owner of a shard after the other, at the sum, the step and the gather."""
    stream = Bundle.read(plan(name, tmp_path)).stream(0, (1, 1))
    kinds = (Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.GATHER)
    at = [next(n for n, each in enumerate(stream) if each.opcode is kind) for kind in kinds]
    faults = [f"kill=1:1@6.{at[1]}", f"kill=0:0@14.{at[2]}", f"kill=2:1@30.{at[0]}"]
    outcome = train(tmp_path, name, MLP, 60, faults)
    assert len(outcome.faults) == 3
    check_tiny(tmp_path, outcome, MLP, 3)


def test_kills_with_experts(tmp_path: Path) -> None:
    """In an exchange of peers, at the sum of gradients by expert, and while weights go to other slots."""
    stream = Bundle.read(plan("experts", tmp_path)).stream(0, (1, 1))
    kinds = (Opcode.FORWARD, Opcode.REDUCE, Opcode.GATHER)
    at = [next(n for n, each in enumerate(stream) if each.opcode is kind) for kind in kinds]
    faults = [f"kill=1:1@6.{at[0] + 1}", f"kill=0:0@14.{at[1]}", f"kill=2:1@30.{at[2]}"]
    outcome = train(tmp_path, "experts", SHARED_EXPERTS, 60, faults)
    assert len(outcome.faults) == 3
    check_tiny(tmp_path, outcome, SHARED_EXPERTS, 3)


def test_kills_between_instructions(tmp_path: Path) -> None:
    """While the group is left, and while the next one is joined."""
    faults = ["kill=0:0@6.3", "kill=1:1@6.meet", "kill=2:0@12.9", "kill=0:1@12.leave"]
    outcome = train(tmp_path, "staggered", TINY, 40, faults)
    check_tiny(tmp_path, outcome, TINY, 2)


@pytest.mark.parametrize("kind", ["stop", "exception"])
def test_other_faults(tmp_path: Path, kind: str) -> None:
    outcome = train(tmp_path, "staggered", TINY, 40, [f"{kind}=1:1@6.9", f"{kind}=0:0@20.15"])
    check_tiny(tmp_path, outcome, TINY, 4)


# Faults of a device.

STRIKES = {
    "a kernel that never ends": "torch.cuda._sleep(1 << 62)",
    "a device-side assert": "torch.zeros(4, device=at)[torch.full((9,), 9, device=at)].sum()",
    "out of memory": "torch.empty(1 << 46, dtype=torch.uint8, device=at)",
}
STRIKING = """
import os
from pathlib import Path

exec(compile(Path({tiny!r}).read_text(), {tiny!r}, "exec"))
_build, _calls = build_stage, iter(range(1_000_000))


def build_stage(stage, stages):
    module = _build(stage, stages)
    if stage == 1:
        module.register_forward_pre_hook(_strike)
    return module


def _strike(module, inputs):
    at = inputs[0].device
    if at.type == "cuda" and next(_calls) == 42:
        try:
            os.close(os.open({flag!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        {strike}
"""


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a device that can fail")
@pytest.mark.parametrize("strike", STRIKES)
def test_the_error_of_a_device_stays_with_its_worker(tmp_path: Path, strike: str) -> None:
    program, flag = tmp_path / "striking.py", str(tmp_path / "flag")
    program.write_text(STRIKING.format(tiny=TINY, flag=flag, strike=STRIKES[strike]))
    more = {"graphs": "off", "instruction_timeout": 5.0}
    outcome = train(tmp_path, "staggered", str(program), 40, [], **more)
    assert Path(flag).exists()
    check_tiny(tmp_path, outcome, str(program), 5)


# Everything else.


@pytest.mark.parametrize(
    ("name", "program"), [("staggered", TINY), ("sharded", MLP), ("experts", SHARED_EXPERTS)]
)
def test_rejoin_and_relay(tmp_path: Path, name: str, program: str) -> None:
    faults, returns = ["kill=1:1@6.9", "kill=0:0@200.20"], ["1:1@8", "0:0@210"]
    outcome = train(tmp_path, name, program, 1500, faults, returns=returns, relay=True)
    check_tiny(tmp_path, outcome, program, 6)


@pytest.mark.parametrize("name", ["sharded", "sharded_barrier"])
def test_shards_of_workers_that_have_come_back(tmp_path: Path, name: str) -> None:
    """Every worker of a stage fails once, each after the one before it owns shards again."""
    faults = ["kill=1:1@6.9", "kill=0:1@900.9", "kill=2:1@1800.9"]
    returns = ["1:1@8", "0:1@902", "2:1@1802"]
    outcome = train(tmp_path, name, MLP, 2700, faults, returns=returns)
    assert len(outcome.faults) == 3
    check_tiny(tmp_path, outcome, MLP, 6)


@pytest.mark.parametrize("name", ["sharded", "sharded_barrier"])
def test_everybody_has_the_last_weights(tmp_path: Path, name: str) -> None:
    """Weights of the last step are on their way when the first worker is through with it."""
    program = changed(tmp_path, MLP, "WIDTH = 768")
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        outcome = train(folder, name, program, 3, [])
        check_tiny(folder, outcome, program, 6)
        assert len(list((folder / "run" / "saved").glob("worker-*.pt"))) == 6


@pytest.mark.parametrize("name", ["staggered", "sharded"])
def test_a_stage_is_lost_and_taken_from_copies_in_memory(tmp_path: Path, name: str) -> None:
    faults = [f"kill={pipeline}:1@30.9" for pipeline in range(3)]
    more = {"neighbour_copies": 5, "max_resumes": 3, "restarts_workers": True}
    outcome = train(tmp_path, name, TINY, 60, faults, **more)
    assert outcome.error is None
    alone = train_alone(TINY, STAGES, PER_STEP, 60)
    rows = {row.step: row.loss_or_nan for row in outcome.rows}
    assert [rows[step] for step in range(60)] == pytest.approx(alone.losses, rel=1e-9)


@pytest.mark.parametrize("name", ["staggered", "sharded"])
def test_checkpoints_and_resume(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    more = {"checkpoint": folder, "checkpoint_every": 5}
    first = train(tmp_path / "first", name, TINY, 23, ["kill=1:0@15.11"], **more)
    assert first.error is None
    outcome = train(tmp_path / "second", name, TINY, 50, ["kill=2:1@30.3"], resume=True, **more)
    assert outcome.error is None
    alone = train_alone(TINY, STAGES, PER_STEP, 50)
    rows = {row.step: row.loss_or_nan for row in [*first.rows, *outcome.rows]}
    assert [rows[step] for step in range(50)] == pytest.approx(alone.losses, rel=1e-9)


SKIPPED = """
from pathlib import Path

exec(compile(Path({tiny!r}).read_text(), {tiny!r}, "exec"))
_batches = batches


def batches(seed):
    for number, (points, target) in enumerate(_batches(seed)):
        yield points * (float("nan") if number in (100, 210) else 1.0), target
"""


def test_a_skipped_step_and_a_kill(tmp_path: Path) -> None:
    program = tmp_path / "skipped.py"
    program.write_text(SKIPPED.format(tiny=TINY))
    outcome = train(tmp_path, "staggered", str(program), 40, ["kill=1:1@9.9", "kill=0:0@18.2"])
    assert outcome.error is None
    alone = train_alone(str(program), STAGES, PER_STEP, 40)
    for row, loss in zip(outcome.rows, alone.losses, strict=True):
        assert row.loss_or_nan == pytest.approx(loss, rel=1e-9, nan_ok=True)
    assert sum(math.isnan(loss) for loss in alone.losses) == 2


def test_ranks(tmp_path: Path) -> None:
    """Three workers of two tensor-parallel processes each."""
    outcome = train(tmp_path, "ranks", SLICED, 40, ["kill=1:0@6.7"])
    check_slices(tmp_path / "run", outcome, 40, PER_STEP)
    assert outcome.rows[-1].live == 2


def test_ranks_of_a_device_mesh(tmp_path: Path) -> None:
    """The same with torch's own tensor parallelism: parameters, sequence and loss in slices."""
    steps = 40
    outcome = train(tmp_path, "distributed", PARALLELIZED, steps, ["kill=1:0@6.7"], heartbeat_timeout=20.0)
    assert outcome.error is None
    assert outcome.rows[-1].live == 2
    alone = train_alone(PARALLELIZED, 1, PER_STEP, steps, cut=(5,))
    assert [row.loss_or_nan for row in outcome.rows] == pytest.approx(alone.losses, rel=1e-9)


def test_a_worker_with_fewer_ranks(tmp_path: Path) -> None:
    """It comes back with one of its two ranks; then its peer fails, and gets its state from that one."""
    program, steps = tmp_path / "program.py", 300
    program.write_text(f"{Path(PARALLELIZED).read_text()}\nRANKS = (1,)\n")
    faults, returns = ["kill=1:0@6.7", f"kill?=0:0@{steps // 2}"], ["1:0@8x1", f"0:0@{steps // 2 + 10}"]
    more = {"returns": returns, "heartbeat_timeout": 20.0, "adaptation": AdaptationOptions(recut="off")}
    outcome = train(tmp_path, "distributed", str(program), steps, faults, **more)
    assert outcome.error is None
    assert "1:0 is restarted with 1 of 2 ranks" in outcome.events
    assert outcome.rows[-1].live == 3
    alone = train_alone(PARALLELIZED, 1, PER_STEP, steps, cut=(5,))
    assert [row.loss_or_nan for row in outcome.rows] == pytest.approx(alone.losses, rel=1e-9)


def layered(folder: Path) -> str:
    """Six layers without dropout: a GPU draws other numbers than the process that it is compared with."""
    path = folder / "layered.py"
    path.write_text((PROGRAMS / "layered.py").read_text().replace("0.1 if number == 3 else 0.0", "0.0"))
    return str(path)


@pytest.mark.parametrize("recut", ["always", "off"])
def test_layers(tmp_path: Path, recut: str) -> None:
    """With re-cuts, layers move to other workers."""
    program, steps = layered(tmp_path), 300
    adaptation = AdaptationOptions(recut=recut)
    outcome = train(tmp_path, "layered", program, steps, ["kill=1:1@6.9"], adaptation=adaptation)
    assert outcome.error is None
    assert any(event.startswith("re-cut to") for event in outcome.events) == (recut == "always")
    alone = train_alone(program, 1, PER_STEP, steps, cut=(6,))
    assert [row.loss_or_nan for row in outcome.rows] == pytest.approx(alone.losses, rel=1e-9)
    for state in saved_models(tmp_path / "run" / "saved").values():
        check_close(state, alone.states[0])


def test_groups(tmp_path: Path) -> None:
    """Five workers go on as two pipelines and one that holds all layers; then one of a pipeline fails."""
    program, steps = layered(tmp_path), 300
    faults, adaptation = ["kill=1:1@6.9", "kill=0:0@250.9"], AdaptationOptions(recut="always")
    outcome = train(tmp_path, "groups", program, steps, faults, adaptation=adaptation)
    assert outcome.error is None
    assert {GROUPS, "0 1"} < {row.plan for row in outcome.rows}
    alone = train_alone(program, 1, PER_STEP, steps, cut=(6,))
    assert [row.loss_or_nan for row in outcome.rows] == pytest.approx(alone.losses, rel=1e-9)


@pytest.mark.parametrize("name", ["staggered", "sharded"])
def test_graphs(tmp_path: Path, name: str) -> None:
    """Captured work is replayed before a failure and after it; in float32. Weights of others, too."""
    program = str(EXAMPLES / "gpt.py")
    outcome = train(tmp_path, name, program, 30, ["kill=1:1@12.9", "kill=0:0@20.3"], graphs="on")
    assert outcome.error is None
    alone = train_alone(program, STAGES, PER_STEP, 30, cut=(5, 5))
    assert [row.loss_or_nan for row in outcome.rows] == pytest.approx(alone.losses, rel=1e-3)


def test_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROPOUT", "0")
    steps = 24
    script = (LOOP, str(tmp_path), str(steps), "--evaluate-every", "1", "--sleep", "0.05")
    options = RunOptions(
        plan("staggered", tmp_path),
        "",
        None,
        script=script,
        device=DEVICE,
        faults=("kill=0:0@9", "kill=1:1@15"),
    )
    result = run_local(options)
    assert [row.step for row in result.steps] == list(range(steps))
    plain = train_plainly(steps, PER_STEP)
    for seen in records(tmp_path):
        check_seen(seen, plain, rel=1e-9)
