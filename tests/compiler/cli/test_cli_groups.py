"""Commands that read bundles take plans in groups of pipelines as any other."""

import json
from pathlib import Path

import pytest

import recycle_compiler as recyclec
from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.cli.main import main
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.passes.rename_workers import RenameWorkers
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle
from tests.support.grouped import FIVE, UNEVEN, write_grouped


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A job and its bundle."""
    return write_grouped(tmp_path_factory.mktemp("grouped"))


@pytest.fixture
def plan(files: tuple[str, str]) -> str:
    return files[1]


def five_workers(folder: Path, source: str, *options: str) -> str:
    """A bundle of one plan, in groups."""
    path = str(folder / "five.plan")
    assert main(["plan", source, "--layout", FIVE, *options, "-o", path]) == 0
    return path


def test_the_plan_that_is_shown_is_the_one_of_the_table(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, plan = files
    assert main(["compile", source, "--json", "--groups", "on", "--jobs", "1"]) == 0
    table = json.loads(capsys.readouterr().out)["plans"]
    assert [row["period"] for row in table] == [24, 30, 36, 42]
    for row in table:
        failures = str(row["failures"])
        assert main(["show", plan, "--failures", failures, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["period"] == row["period"]
        assert recyclec.read(plan)[row["failures"]].period == row["period"]


def test_a_heading_in_words(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "uneven: 4 layers on 5 workers in 2 groups of pipelines with cuts of their own; 16 micro-batches",
        "group 0 has 13 micro-batches in 2 stages on 4 workers, layers x workers of each: 2x2 2x2",
        "group 1 has 3 micro-batches in 1 stage on 1 worker, layers x workers of each: 4x1",
    )
    assert main(["show", plan, "--failures", "3"]) == 0
    shown = capsys.readouterr()
    assert tuple(shown.out.splitlines()[:3]) == words
    assert "form 2 groups with cuts of their own, which have 13 and 3 micro-batches" in shown.err
    for format_ in ("svg", "html"):
        out = tmp_path / f"plan.{format_}"
        assert main(["show", plan, "--failures", "3", "--format", format_, "-o", str(out)]) == 0
        assert all(line in out.read_text() for line in words)
    assert main(["show", plan, "--failures", "3", "--cut", "own"]) == 0
    assert "4x5, as the job cuts them" in capsys.readouterr().out


def test_which_plans_the_bound_over_all_cuts_is_about(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(path: str, *options: str) -> str:
        assert main(["show", path, "--width", "200", *options]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if line.startswith("no plan"))

    who = "no plan for 5 workers with every layer on 2 or more, under one cut"
    assert told(files[1], "--failures", "3") == f"{who} or in two groups, is faster than 39 slots"
    # A plan under one cut does not know whether groups were looked for.
    perhaps = f"{who} or, if groups were planned, in two groups, is faster than 39 slots"
    assert told(files[1], "--failures", "3", "--cut", "own") == perhaps
    alone, plan = tmp_path / "alone.job", str(tmp_path / "alone.plan")
    alone.write_text(
        UNEVEN.replace("data = 8", "data = 5  groups = off").replace(
            "failures = 3", "failures = 0  redundancy = 1"
        )
    )
    assert main(["compile", str(alone), "-o", plan, "--jobs", "1"]) == 0
    assert told(plan, "--cut", "own").startswith("no plan for 5 workers, under one cut, is faster than ")
    assert main(["explain", plan, "--cut", "own", "--what-if", "none"]) == 0
    assert "\n  no plan for 5 workers, under one cut, is faster than " in capsys.readouterr().out


def test_workers_that_fail_are_named(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every group keeps its own micro-batches."""
    path = five_workers(tmp_path, files[0], "--failed", "0:0")
    assert main(["verify", path]) == 0
    renamed = RenameWorkers(failure_set([(1, 0), (0, 2)])).run(recyclec.read(path).own(0).streams)
    assert not list(verify_bundle(Bundle.parse(bundle_bytes(source="", plans=[renamed]))))
    assert main(["show", path, "--failed", "1:0,0:2"]) == 0
    assert main(["show", path, "--failures", "7"]) == 2
    assert "no plan for 7 failures: the bundle plans for 2" in capsys.readouterr().err


def test_too_few_workers_for_a_cut(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", plan, "--layout", FIVE, "--failures", "5"]) == 2
    assert "it is for 5 workers, and 3 are left" in capsys.readouterr().err
    assert main(["show", plan, "--layout", "2x2,2x2@12+4x1@4"]) == 2
    assert FIVE in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "explain", "verify"])
def test_a_truncated_bundle(
    plan: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.plan"
    cut.write_bytes(Path(plan).read_bytes()[:-100])
    assert main([command, str(cut)]) == 1
    assert "truncated" in capsys.readouterr().err


def test_the_only_plan_of_a_file_has_its_layout(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = five_workers(tmp_path, files[0])
    assert main(["show", path]) == 0
    only = capsys.readouterr().out
    assert main(["show", path, "--layout", "2x2*2 @13 + 4x1 @3"]) == 0
    assert capsys.readouterr().out == only


def test_a_group_of_one_micro_batch_takes_its_time(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "one.plan")
    assert main(["plan", files[0], "--layout", "2x2*2 @15 + 4x1 @1", "-o", path]) == 0
    assert main(["explain", path]) == 0
    told = capsys.readouterr().out
    assert "  group 0 binds: 15 micro-batches on 4 workers take at least " in told
    assert "  group 1: 1 micro-batch on 1 worker takes at least 12 slots" in told


def test_a_worker_beyond_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No grid that divides sixteen micro-batches has nine workers: it begins with cells that nobody is in."""
    job = tmp_path / "nine.job"
    free = UNEVEN.replace("pipeline = 1  data = 8", "workers = 9")
    job.write_text(free.replace("microbatches = 2", "microbatches = 16"))
    assert main(["compile", str(job), "--failures", "0", "--jobs", "1", "--json"]) == 0
    said = capsys.readouterr().err
    assert "starts on 1 stage of 16 workers, 7 of these 16 places vacant" in said
    assert "not used" not in said


def test_which_cut_became_which(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, plan = files
    without = str(tmp_path / "without.plan")
    assert main(["compile", source, "-o", without, "--jobs", "1", "--groups", "off"]) == 0
    assert main(["diff", without, plan]) == 1
    told = capsys.readouterr().out
    assert f"plans under {FIVE}: only in" in told
    assert f"fastest cut for 3 failures: 4x5 (own) 48 slots -> {FIVE} 42 slots; no worker needs" in told
    assert main(["diff", plan, without, "--json"]) == 1
    changes = json.loads(capsys.readouterr().out)["fastest_cuts"]
    assert [(row["before"]["layout"], row["after"]["layout"]) for row in changes][-1] == (FIVE, "4x5")
    assert changes[-1]["layers_moved"] == 8


def test_other_times(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan = files
    options = ["retime", plan, "--failures", "3", "--cut", "fastest", "--times"]
    assert main([*options, source]) == 0
    assert "a step takes 42 slots with these times, 42 as planned (+0.0 %)" in capsys.readouterr().out
    twice = tmp_path / "twice.job"
    twice.write_text(UNEVEN.replace("= 1 ", "= 2 "))
    assert main([*options, str(twice)]) == 0
    assert "a step takes 84 slots" in capsys.readouterr().out
    assert main([*options, source, "--slow", "0:2=2"]) == 0
    assert "a step takes 72 slots" in capsys.readouterr().out
    assert main([*options, source, "--slow", "1:2=2"]) == 2
    assert "worker 1:2 cannot be slow: this plan has no such worker" in capsys.readouterr().err
    for wrong, why in (("microbatches = 2", "does not share 24"), ("count = 4", "a job of 6 layers")):
        other = {"microbatches = 2": "microbatches = 3", "count = 4": "count = 6"}[wrong]
        twice.write_text(UNEVEN.replace(wrong, other))
        assert main([*options, str(twice)]) == 1
        assert why in capsys.readouterr().err


def test_a_plan_beside_a_run(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ops of several chunks on one worker have the same names in a trace."""
    path, trace = five_workers(tmp_path, files[0]), str(tmp_path / "trace.json")
    assert main(["show", path, "--format", "trace", "-o", trace]) == 0
    assert main(["diff", path, trace]) == 0
    told = capsys.readouterr().out
    assert f"uneven, {FIVE}; step 0" in told and "(+0.0 %): ops take as long as the profile says" in told
    assert "2 c1" in told
    assert main(["diff", path, trace, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ops"]
    assert {(row["stage"], row["chunk"]) for row in rows} == {(0, 0), (1, 1), (2, 0), (2, 1)}
    events = json.loads(Path(trace).read_text())
    again = next(event for event in events["traceEvents"] if event.get("name") == "R")
    events["traceEvents"].append({**again, "ts": again["ts"] + 1})
    Path(trace).write_text(json.dumps(events))
    assert main(["diff", path, trace]) == 1
    assert "has run R" in capsys.readouterr().err


def test_a_simulation_goes_over_to_groups(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, plan = files
    without, out = str(tmp_path / "without.plan"), str(tmp_path / "report.json")
    assert main(["compile", source, "-o", without, "--jobs", "1", "--groups", "off"]) == 0
    kept: list[float] = []
    for bundle in (without, plan):
        options = ["--trace", "every 1h", "--hours", "4", "--against", "ours", "--slot", "1s"]
        assert main(["simulate", bundle, *options, "--format", "json", "-o", out]) == 0
        report = json.loads(Path(out).read_text())
        kept.append(report["policies"]["ours"]["iterations"])
    assert kept[1] > kept[0]
    assert f"cut to {FIVE}" in Path(out).read_text()
    assert main(["simulate", plan, "--trace", "every 1h", "--against", "ours", "--jitter", "5%"]) == 0
    capsys.readouterr()
    assert main(["simulate", five_workers(tmp_path, source), "--trace", "none"]) == 1
    assert "a job cannot begin with groups of pipelines" in capsys.readouterr().err


def test_why_groups(files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plan = files
    assert main(["explain", plan, "--failures", "3"]) == 0
    assert f"why two groups: {FIVE}" in capsys.readouterr().out
    assert main(["explain", plan, "--failures", "3", "--json", "--what-if", "none"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["groups"]["binding"] == facts["bottleneck"]["group"] == 0
    assert [group["microbatches"] for group in facts["groups"]["groups"]] == [13, 3]
    assert facts["groups"]["one_cut"] == {"failures": 3, "period": 48, "layout": "4x5"}
    assert [row["group"] for row in facts["stage_times"]] == [0, 0, 1]
    # Under one cut, and with one failure more than the next, which is in groups.
    assert main(["explain", plan, "--failures", "2", "--what-if", "none"]) == 0
    assert "with 1 failure the bundle takes 30 slots, under 2x2,2x2@10+4x3@6" in capsys.readouterr().out
    # A file of nothing but such a plan has the job's own cut in its source, and no other plans.
    assert main(["explain", five_workers(tmp_path, source), "--what-if", "none", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["one_f_one_b"] == facts["one_f_one_b"] == 24
    of_bundle = {"one_cut", "one_failure_fewer"}
    assert all(alone["groups"][name] is None for name in of_bundle)
    assert alone["groups"] == {**facts["groups"], **dict.fromkeys(of_bundle)}


def test_one_of_the_group_failed(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = five_workers(tmp_path, files[0], "--failed", "0:0")
    assert main(["explain", path, "--what-if", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"]["workers"] == 4


def test_every_rule_holds(plan: str) -> None:
    assert any(recut.groups for recut in Bundle.read(plan).recuts)
    assert main(["verify", plan]) == 0


def test_json_names_the_layout(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", files[0], "--json", "--groups", "on", "--jobs", "1"]) == 0
    layouts = [row["layout"] for row in json.loads(capsys.readouterr().out)["plans"]]
    assert layouts == ["4x8", "2x2,2x2@10+4x3@6", "4x6", FIVE]


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ("0", "no plan with every layer on 2 or more"),
        ("2", "no plan of this cut"),
        ("3", "no plan of these groups and shares"),
    ],
)
def test_what_a_bound_is_about(
    plan: str, failures: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two failures a plan under one cut takes 36 slots, and two groups take 33 at least."""
    assert main(["explain", plan, "--failures", failures, "--what-if", "none"]) == 0
    assert f"optimal: {words} is faster; makespan" in capsys.readouterr().out
    assert main(["show", plan, "--failures", failures, "--format", "svg"]) == 0
    assert f"slots, and {words} is faster<" in capsys.readouterr().out
    assert main(["show", plan, "--failures", failures, "--format", "html"]) == 0
    assert f'"no_plan":"{words}"' in capsys.readouterr().out.replace('": "', '":"')
