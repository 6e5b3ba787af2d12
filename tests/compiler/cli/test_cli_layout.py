"""`recyclec plan --layout`: a job in layers under a cut that the user names."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.ir.bundled import read_job
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle

Recyclec = Callable[..., tuple[int, str, str]]


def test_a_bundle_of_this_layout(layered_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    out = tmp_path / "x.plan"
    code, data, words = recyclec("plan", layered_job, "--layout", "2x2,2x2,2x4", "-o", str(out))
    assert (code, data, words) == (0, "", f"recyclec: wrote {out}\n")
    bundle = Bundle.read(out)
    assert (bundle.cut, bundle.recuts, bundle.pipelines, bundle.microbatches) == ((2, 2, 2), (), 4, 4)
    assert bundle.job_source == Path(layered_job).read_text()
    assert bundle.plans[0].failed == ((2, 0), (2, 1), (3, 0), (3, 1))
    assert bundle.plans[0].period == 50_000
    assert list(verify_bundle(bundle)) == []
    # Stages are sums of layers; capacity is what their state leaves.
    job = read_job(bundle)
    assert (job.forward, job.optimizer, job.capacity) == ((2000, 2000, 4000), (2000,) * 3, (20_000,) * 3)


def test_workers_that_failed_are_named_in_the_grid_of_the_layout(
    layered_job: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    out = tmp_path / "x.plan"
    code, *_ = recyclec("plan", layered_job, "--layout", "2x2,2x2,2x4", "--failed", "0:0,1:2", "-o", str(out))
    bundle = Bundle.read(out)
    assert code == 0
    assert bundle.workers(0) == ((1, 0), (0, 1), (1, 1), (0, 2), (2, 2), (3, 2))
    assert list(verify_bundle(bundle)) == []


def test_a_slow_worker_of_a_layout_gets_fewer_micro_batches(layered_job: str, recyclec: Recyclec) -> None:
    layout = ("plan", layered_job, "--layout", "3x4,3x4", "--slow", "0:1=2", "--format", "json")
    code, data, words = recyclec(*layout)
    shares = [op["worker"] for op in json.loads(data)["ops"] if op["kind"] == "F" and op["stage"] == 1]
    assert code == 0 and "with 0:1 2 times slower" in words
    assert shares.count([0, 1]) < shares.count([1, 1])


@pytest.fixture
def split_job(layered_job: str, tmp_path: Path) -> str:
    """Two halves of a micro-batch take 10 % longer than the whole."""
    path = tmp_path / "split.job"
    path.write_text(
        Path(layered_job).read_text().replace("microbatches = 4", "microbatches = 4  split = 10%")
    )
    return str(path)


def test_micro_batches_in_halves(split_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    out = str(tmp_path / "x.plan")
    asked = ("--layout", "2x2,2x2,2x4", "--split", "--failed", "1:2")
    assert recyclec("plan", split_job, *asked, "-o", out)[0] == 0
    code, checked, _ = recyclec("verify", out)
    assert code == 0 and checked.startswith("plan 0: ok, 7 workers as 2x2,2x2,2x3 in halves, ")
    bundle = Bundle.read(out)
    job = read_job(bundle)
    assert (bundle.pipelines, bundle.microbatches, job.parts) == (4, 8, 2)
    assert (job.forward, job.optimizer, job.activation) == ((1100, 1100, 2200), (2000,) * 3, (1000,) * 3)
    assert list(verify_bundle(bundle)) == []
    code, shown, _ = recyclec("show", out)
    first = "layered: 6 layers in 3 stages on 7 workers, another cut than the job starts with"
    assert (code, shown.splitlines()[0]) == (0, f"{first}; 16 micro-batches, each in two halves")
    assert "halves of micro-batches are counted from 0 to 31" in shown
    assert json.loads(recyclec("show", out, "--format", "json")[1])["split"] == 2
    # Its own times give what was planned.
    code, data, _ = recyclec("retime", out, "--times", split_job, "--json")
    row = json.loads(data)
    assert (code, row["step_ticks"]) == (0, row["planned_ticks"])


def test_cells_without_a_worker_are_no_failures(layered_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    out = str(tmp_path / "x.plan")
    for asked, told, plans in (
        (("--layout", "2x2,2x2,2x4"), "plan 0: ok, 8 workers as 2x2,2x2,2x4, ", "1 plan for 8 workers"),
        (
            ("--layout", "3x2,3x2@12+6x1@4"),
            "plan 0: ok, 5 workers as 3x2,3x2@12+6x1@4, ",
            "1 plan for 5 workers",
        ),
    ):
        assert recyclec("plan", layered_job, *asked, "-o", out)[0] == 0
        code, checked, words = recyclec("verify", out)
        assert code == 0 and checked.startswith(told)
        whole, content_hash = words.splitlines()
        assert whole == f"recyclec: {out}: {plans}, every rule holds" and "content hash" in content_hash


def test_halves_are_said_where_cuts_are_listed(split_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    """With one micro-batch a worker splitting pays at any cost that is less than double."""
    few, out = tmp_path / "few.job", str(tmp_path / "few.plan")
    few.write_text(Path(split_job).read_text().replace("microbatches = 4", "microbatches = 1"))
    code, _, table = recyclec("compile", str(few), "-o", out)
    assert code == 0 and "in halves" in table
    code, checked, _ = recyclec("verify", out)
    assert code == 0 and "in halves" in checked


def test_what_cannot_be_split_is_said_in_one_sentence(
    layered_job: str, split_job: str, recyclec: Recyclec
) -> None:
    code, data, words = recyclec("plan", split_job, "--failed", "0:0", "--split")
    assert (code, data) == (2, "") and "--split goes with --layout" in words
    code, data, words = recyclec("plan", layered_job, "--layout", "3x4,3x4", "--split")
    assert (code, data) == (1, "")
    assert words.startswith(f"recyclec: error: {layered_job}: does not say what half a micro-batch costs: ")


@pytest.mark.parametrize(
    ("layout", "more", "code", "sentence"),
    [
        ("3x4,2x4", (), 2, "--layout 3x4,2x4 has 5 layers, layered has 6"),
        ("2x4,2x4", (), 2, "has 4 layers, layered has 6: the embedding and the head are layers too"),
        ("3x4,3x17", (), 2, "has 17 workers on a stage, and only 16 micro-batches to share among them"),
        ("3x2,3x4", ("--failed", "2:0"), 2, "worker 2:0 does not exist under --layout 3x2,3x4: workers are "),
        ("3x2,3x4", ("--slow", "2:0=2"), 2, "worker 2:0 does not exist under --layout 3x2,3x4: workers are "),
        ("3x2,3x4", ("--failed", "0:0", "--slow", "0:0=2"), 2, "--failed counts it as failed"),
        ("3x2,3x4", ("--failed", "0:0,1:0"), 3, "stage 0 of --layout 3x2,3x4 has no live worker: all 2 of"),
        ("6x1", ("--failed", "0:0"), 3, "stage 0 of --layout 6x1 has no live worker: its only worker failed"),
    ],
)
def test_what_is_wrong_with_a_layout_is_one_sentence(
    layered_job: str, recyclec: Recyclec, layout: str, more: tuple[str, ...], code: int, sentence: str
) -> None:
    status, data, words = recyclec("plan", layered_job, "--layout", layout, *more)
    assert (status, data) == (code, "")
    assert sentence in words.splitlines()[-1]


def test_a_layout_that_cannot_be_read(
    layered_job: str, recyclec: Recyclec, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        recyclec("plan", layered_job, "--layout", "3x4,3")
    sentence = "--layout: a stage is LAYERSxWORKERS, such as 8x4, and 8x4*3 is three of them, got `3`"
    assert sentence in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        recyclec("plan", layered_job, "--layout", "3x4*2, in halves")
    assert "--layout: leave out `in halves`: it names no stage" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2x2*2 2x4", "2x2*2, 2x4", " 2x2 2x2,2x4 (own cut)"])
def test_a_layout_as_the_table_prints_it(text: str, layered_job: str, recyclec: Recyclec) -> None:
    named = recyclec("plan", layered_job, "--layout", "2x2,2x2,2x4", "--format", "schedule")
    assert named[0] == 0
    assert recyclec("plan", layered_job, "--layout", text, "--format", "schedule") == named


def test_a_layout_that_does_not_fit_into_memory_has_no_plan(
    layered_job: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    tight = tmp_path / "tight.job"
    tight.write_text(Path(layered_job).read_text().replace("capacity = 24", "capacity = 10"))
    assert recyclec("plan", str(tight), "--layout", "4x4,2x4") == (
        3,
        "",
        "recyclec: error: no plan for layered: on stage 0 of --layout 4x4,2x4 one micro-batch needs 4 "
        "besides 8 of weights, gradients and optimizer state, capacity is 10\n",
    )


def test_a_job_of_whole_stages_cannot_be_cut(small_job: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("plan", small_job, "--layout", "1x2,1x2")
    assert (code, data) == (1, "")
    assert words.startswith(f"recyclec: error: {small_job}: the job cannot be cut otherwise: ")


def test_too_few_holders_of_a_layer_are_noted(layered_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    code, _, words = recyclec("plan", layered_job, "--layout", "3x1,3x4", "-o", str(tmp_path / "x.plan"))
    assert code == 0
    assert words.startswith(
        "recyclec: note: stage 0 has 1 worker, where the job asks for 2 holders of each layer: its failure "
        "ends the job\n"
    )


def test_the_fastest_cut_for_some_workers(layered_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    """Its bundle also has the plan that covers a failure more on every stage."""
    out = str(tmp_path / "x.plan")
    code, data, words = recyclec("plan", layered_job, "--workers", "5", "-o", out)
    bundle = Bundle.read(out)
    said, wrote = words.splitlines()
    assert (code, data, wrote) == (0, "", f"recyclec: wrote {out}")
    assert said.startswith("recyclec: the fastest cut found for 5 workers is ")
    assert [len(bundle.workers(plan)) for plan in range(len(bundle.plans))] == [5, 5 - bundle.stages]
    assert list(verify_bundle(bundle)) == []
    assert min(len(workers) for workers in _peers(bundle)) >= 2


def _peers(bundle: Bundle) -> list[list[tuple[int, int]]]:
    workers = bundle.workers(0)
    return [[one for one in workers if one[1] == stage] for stage in range(bundle.stages)]


def test_more_workers_are_never_slower(layered_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    periods: list[int] = []
    for workers in (2, 3, 4, 6, 8):
        out = str(tmp_path / f"{workers}.plan")
        assert recyclec("plan", layered_job, "--workers", str(workers), "-o", out)[0] == 0
        periods.append(Bundle.read(out).plans[0].period)
    assert periods == sorted(periods, reverse=True)


def test_halves_under_the_fastest_cut(split_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    out = str(tmp_path / "x.plan")
    assert recyclec("plan", split_job, "--workers", "5", "--split", "-o", out)[0] == 0
    bundle = Bundle.read(out)
    assert bundle.pipelines * bundle.microbatches == 32 and read_job(bundle).parts == 2
    assert list(verify_bundle(bundle)) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "1"), "no plan for layered: 1 worker cannot hold 6 layers, each on 2 of them"),
        (("--workers", "9"), "recyclec: error: --workers must be at most 8, the workers of the job, got 9\n"),
        (("--workers", "4", "--failed", "0:0"), "leave out --failed"),
        (("--workers", "4", "--layout", "6x4"), "leave out --layout"),
        (("--workers", "4", "--split"), "does not say what half a micro-batch costs"),
    ],
)
def test_what_cannot_be_asked_of_workers(
    layered_job: str, recyclec: Recyclec, arguments: tuple[str, ...], words: str
) -> None:
    code, data, said = recyclec("plan", layered_job, *arguments)
    assert code != 0 and data == "" and words in said


def test_all_workers_of_a_job_may_be_used(layered_job: str, recyclec: Recyclec, tmp_path: Path) -> None:
    """Nine fill no grid that helps; a cut that the user gives may have more."""
    job = tmp_path / "nine.job"
    text = Path(layered_job).read_text().replace("pipeline = 2  data = 4  cut = [3, 3]", "workers = 9")
    job.write_text(text.replace("microbatches = 4", "microbatches = 16"))
    assert recyclec("plan", str(job), "--workers", "9", "--quiet")[0] == 0
    code, data, said = recyclec("plan", str(job), "--workers", "10")
    assert (code, data) == (2, "")
    assert said.splitlines()[-1] == (
        "recyclec: error: --workers must be at most 9, the workers of the job, got 10"
    )
    assert recyclec("plan", str(job), "--layout", "3x4,3x6", "--quiet")[0] == 0


def test_whole_stages_have_no_fastest_cut(small_job: str, recyclec: Recyclec) -> None:
    code, _, said = recyclec("plan", small_job, "--workers", "4")
    assert code != 0 and "the job cannot be cut otherwise" in said
