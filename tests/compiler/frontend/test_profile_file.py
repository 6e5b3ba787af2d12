"""Measured profiles: what is read, and what is refused with the path inside the file."""

import json
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.expert_messages import message_ticks
from recycle_compiler.ir.job import JobSpec
from tests.compiler.frontend.job_texts import job_text, marked

STAGE: dict[str, Any] = {
    "forward": 1_200_000,
    "backward_input": 1_300_000,
    "backward_weight": 1_100_000,
    "optimizer": 400_000,
    "reduce": 900_000,
    "transfer": 60_000,
    "activation_bytes": 96 << 20,
    "kept_bytes": 64 << 20,
    "parameter_bytes": 3 << 30,
    "forward_spread": [1, 2, 3],
}
LEAST = {key: STAGE[key] for key in ("forward", "backward_input", "backward_weight", "activation_bytes")}


def profile(stages: Any, **changed: Any) -> dict[str, Any]:
    return {
        "format": "recycle-profile",
        "version": 1,
        "device": "cpu",
        "unit": "ns",
        "stages": stages,
    } | changed


def load(folder: Path, content: Any, **blocks: str) -> JobSpec:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "p.json").write_text(text, encoding="utf-8")
    (folder / "x.job").write_text(
        job_text(**({"profile": 'profile from "p.json"'} | blocks)), encoding="utf-8"
    )
    return load_job(folder / "x.job").spec


def refusal(folder: Path, content: Any) -> str:
    with pytest.raises(CompileError) as caught:
        load(folder, content)
    assert marked(caught.value) == ['"p.json"'] * len(caught.value.diagnostics)
    assert caught.value.exit_code == 1
    return "\n".join(one.message for one in caught.value.diagnostics)


def test_exchanges_of_experts(tmp_path: Path) -> None:
    """Times of a round have it, by stage, by layer, and where layers are written out."""
    sharing = "optimizer { state = sharded }  experts { slots = 2 }"
    rows = [LEAST | {"exchange": each} for each in (0, 5, 7, 0)]
    by_layer = {"format": "recycle-profile", "version": 1, "layers": rows}
    written = (
        "layers { forward = [1, 2 * 2, 1]  backward_input = 1  backward_weight = 1  exchange = [0, 2, 3, 0] }"
    )
    for job, expected in (
        (load(tmp_path, profile(rows), techniques=sharing), (0, 5, 7, 0)),
        (load(tmp_path, by_layer, techniques=sharing), (0, 5, 7, 0)),
        (load(tmp_path, "", profile=written, techniques=sharing), (0, 2000, 3000, 0)),
    ):
        assert job.exchange == expected
        base = 1_200_000 if job.unit == "ms" else 1000
        assert job.forward[1] - job.exchange[1] == (base if job.unit == "ms" else 2 * base)
    for measured in (profile(rows), by_layer):
        assert not any(load(tmp_path, measured).exchange), "without slots, every worker has all experts"
    with pytest.raises(CompileError, match="no experts that peers share"):
        load(tmp_path, "", profile=written)


def test_memory_of_slots(tmp_path: Path) -> None:
    """Of experts those in slots count; what was measured beyond weights and gradients is with owners."""
    rows = [
        LEAST
        | {"activation_bytes": 1, "resident_bytes": 1000, "weight_bytes": 200, "gradient_bytes": 200}
        | {"reduce": 800}
        | {"expert_bytes": experts, "slot_bytes": experts // 8}
        for experts in (0, 160, 160, 0)
    ]
    by_layer = {"format": "recycle-profile", "version": 1, "layers": rows, "pipelines": 3}
    blocks = {"memory": "memory { capacity = 4000 B }"}

    def room(techniques: str) -> tuple[int | None, ...]:
        return load(tmp_path, by_layer, techniques=techniques, **blocks).capacity

    assert room("") == (3000,) * 4
    sharded = "optimizer { state = sharded  owners = 2 }"
    # Of three workers each owns two thirds of 600 bytes.
    assert room(sharded) == (4000 - 400 - 400,) * 4
    job = load(tmp_path, by_layer, techniques=f"{sharded}  experts {{ slots = 3 }}", **blocks)
    # Three of eight experts are 60 of 160 bytes.
    assert job.capacity == (3200, 4000 - 2 * 100 - 400, 4000 - 2 * 100 - 400, 3200)
    assert job.reduce[1] * 2 == job.reduce[0]
    # Where it was measured how long messages of experts take, gradients and weights of experts are in these.
    for row in rows:
        row["slot_transfer"] = 1000 if row["slot_bytes"] else 0
    apart = load(tmp_path, by_layer, techniques=f"{sharded}  experts {{ slots = 4 }}", **blocks)
    messages = message_ticks(1000, 8, 4, apart.pipelines, 2)
    assert (apart.expert_counts, apart.slot_transfer) == ((0, 8, 8, 0), (0, 1000, 1000, 0))
    assert apart.reduce[1] == apart.reduce[0] // 5 + messages.sum
    assert apart.gather[1] == apart.gather[0] // 5 + messages.gather
    assert not load(tmp_path, by_layer, techniques=sharded, **blocks).slot_transfer
    rows[1]["expert_bytes"] = 201
    assert "layers[1].expert_bytes cannot exceed weight_bytes = 200, got 201" in refusal(tmp_path, by_layer)


def test_memory_of_tokens_that_have_come(tmp_path: Path) -> None:
    """Held for a second forward, where peers share experts."""
    rows = [
        LEAST | {"activation_bytes": 100, "kept_bytes": 10, "arrived_bytes": count} for count in (0, 7, 9, 0)
    ]
    by_layer = {"format": "recycle-profile", "version": 1, "layers": rows, "pipelines": 3}
    for measured in (profile(rows), by_layer):
        alone = load(tmp_path, measured)
        assert (alone.activation, alone.kept_for_weight) == ((100,) * 4, (10,) * 4)
        sharing = "optimizer { state = sharded  owners = 2 }  experts { slots = 2 }"
        job = load(tmp_path, measured, techniques=sharing)
        assert (job.activation, job.kept_for_weight) == ((100, 107, 109, 100), (10,) * 4)


def test_a_full_profile(tmp_path: Path) -> None:
    job = load(tmp_path, profile([STAGE] * 4, runtime_version="3"), memory="memory { capacity = 1 GiB }")
    assert (job.unit, job.memory_unit) == ("ms", "byte")
    assert job.forward == (1_200_000,) * 4
    assert job.backward_input == (1_300_000,) * 4
    assert job.backward_weight == (1_100_000,) * 4
    assert job.optimizer == (400_000,) * 4
    assert job.reduce == (900_000,) * 4
    assert job.transfer == (60_000,) * 3
    assert job.activation == (96 << 20,) * 4
    assert job.kept_for_weight == (64 << 20,) * 4
    assert job.parameters == (3 << 30,) * 4
    assert job.capacity == (1 << 30,) * 4


def test_what_was_not_measured_is_nothing_but_activations_are_kept(tmp_path: Path) -> None:
    job = load(tmp_path, profile([LEAST] * 4))
    assert job.optimizer == job.reduce == job.parameters == (0,) * 4
    assert job.transfer == (0,) * 3
    assert job.kept_for_weight == job.activation == (96 << 20,) * 4


def test_capacity_is_in_bytes(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="capacity needs a unit"):
        load(tmp_path, profile([LEAST] * 4), memory="memory { capacity = 4 }")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("{", "is not whole: the JSON breaks off at line 1, column 2"),
        ('{"format":\n  recycle}', "is not valid JSON at line 2, column 3: found `recycle}`"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 10_000, "holds a number with thousands of digits"),
        ("[]", "must hold a JSON object"),
        ("{}", 'format must be "recycle-profile", got nothing'),
        (profile([], format="other"), 'got "other"'),
        (profile([LEAST] * 4, version=2), "version must be 1, got 2"),
        (profile([LEAST] * 4, version=True), "version must be 1, got true"),
        (profile([LEAST] * 4, unit="us"), 'unit must be "ns", got "us"'),
        (profile([LEAST] * 4, device=3), "device must be text, got 3"),
        (profile({}), "stages must be a list, got an object"),
        (profile([LEAST] * 3), "must list 4 stages, as `pipeline` says, got 3"),
        (profile([LEAST, 7, LEAST, LEAST]), "stages[1] must be an object, got 7"),
        (profile([LEAST, LEAST, {**LEAST, "forward": 0}, LEAST]), "stages[2].forward must be"),
        (profile([{**LEAST, "forward": 1.5}] + [LEAST] * 3), "stages[0].forward must be"),
        (profile([{**LEAST, "forward": True}] + [LEAST] * 3), "got true"),
        (profile([{**LEAST, "transfer": -1}] + [LEAST] * 3), "stages[0].transfer must be"),
        (profile([{**LEAST, "transfer": 1 << 51}] + [LEAST] * 3), "stages[0].transfer must be"),
        (profile([{**LEAST, "kept_bytes": 97 << 20}] + [LEAST] * 3), "stages[0].kept_bytes cannot exceed"),
        (profile([{"forward": 1}] + [LEAST] * 3), "stages[0].activation_bytes must be"),
        ("\udcff".encode("utf-8", "surrogatepass").decode("latin-1"), "is not valid JSON"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(tmp_path: Path, content: Any, words: str) -> None:
    assert words in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("{", 'a profile is JSON that begins {"format": "recycle-profile", "version": 1, ...'),
        (profile([LEAST] * 3), "measure as many stages as the job has, or change `pipeline`"),
        (profile([LEAST] * 4, unit="us"), "times are whole nanoseconds"),
        (profile([{}] * 4), "measure the profile again"),
    ],
)
def test_hints_fit_what_is_wrong(tmp_path: Path, content: Any, hint: str) -> None:
    with pytest.raises(CompileError) as caught:
        load(tmp_path, content)
    assert {one.hint for one in caught.value.diagnostics} == {hint}


def test_a_profile_full_of_mistakes_is_cut_short(tmp_path: Path) -> None:
    assert len(refusal(tmp_path, profile([{}] * 4)).split("\n")) == 10


def test_a_missing_profile_is_placed_at_its_name(tmp_path: Path) -> None:
    (tmp_path / "x.job").write_text(job_text(profile='profile from "none.json"'))
    with pytest.raises(CompileError, match="does not exist") as caught:
        load_job(tmp_path / "x.job")
    assert marked(caught.value) == ['"none.json"']
    assert caught.value.diagnostics[0].hint == "paths are relative to the job file"


def test_a_huge_profile_is_refused(tmp_path: Path) -> None:
    assert "is larger than 4 MiB" in refusal(tmp_path, " " * (4 << 20) + "{}")


def test_the_path_is_relative_to_the_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "p.json").write_text(json.dumps(profile([LEAST] * 4)))
    (tmp_path / "jobs" / "x.job").write_text(job_text(profile='profile from "../p.json"'))
    monkeypatch.chdir(tmp_path)
    assert load_job("jobs/x.job").spec.forward == (1_200_000,) * 4


LAYER = STAGE | {"name": "blocks.3", "resident_bytes": 5 << 30}


def by_layer(layers: Any, **changed: Any) -> dict[str, Any]:
    given = profile(layers) | changed
    given["layers"] = given.pop("stages")
    return given


def test_a_profile_by_layer_is_cut_into_the_stages_of_the_job(tmp_path: Path) -> None:
    job = load(tmp_path, by_layer([LAYER] * 10, pipelines=4), memory="memory { capacity = 80 GiB }")
    costs = job.layer_costs
    assert costs is not None
    assert (job.cut, costs.count, costs.capacity) == ((2, 3, 2, 3), 10, 80 << 30)
    assert job.forward == (2_400_000, 3_600_000, 2_400_000, 3_600_000)
    assert costs.transfer == (60_000,) * 9
    assert job.transfer == (60_000,) * 3
    assert job.parameters == (6 << 30, 9 << 30, 6 << 30, 9 << 30)
    # The state of the layers is taken from the whole worker.
    assert job.capacity == (70 << 30, 65 << 30, 70 << 30, 65 << 30)
    # Measured with four workers, which take three quarters of what very many do; three take two thirds.
    assert costs.reduce == (1_200_000,) * 10
    assert job.reduce == (1_600_000, 2_400_000, 1_600_000, 2_400_000)


def test_what_does_not_say_who_reduced_is_for_the_pipelines_of_the_job(tmp_path: Path) -> None:
    job = load(tmp_path, by_layer([LAYER] * 4))
    assert job.reduce == (900_000,) * 4
    assert job.layer_costs is not None
    assert job.layer_costs.reduce == (1_350_000,) * 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (by_layer({}), "layers must be a list of 1 to 4,096, got an object"),
        (by_layer([]), "layers must be a list of 1 to 4,096, got 0"),
        (by_layer([LAYER] * 5000), "got 5,000"),
        (by_layer([LAYER] * 4) | {"stages": 3}, "has both stages and layers"),
        (by_layer([LAYER] * 4, pipelines=0), "pipelines must be a whole number from 1, got 0"),
        (by_layer([LAYER] * 4, pipelines="2"), 'pipelines must be a whole number from 1, got "2"'),
        (by_layer([LAYER] * 3 + [{**LAYER, "forward": 0}]), "layers[3].forward must be"),
        (by_layer([LAYER] * 3 + [{**LAYER, "resident_bytes": -1}]), "layers[3].resident_bytes must be"),
    ],
)
def test_what_is_wrong_with_a_profile_by_layer_is_named_by_its_path(
    tmp_path: Path, content: Any, words: str
) -> None:
    assert words in refusal(tmp_path, content)


def test_a_profile_by_stage_cannot_be_recut(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="whole stages cannot be re-cut") as caught:
        load(tmp_path, profile([STAGE] * 4), parallel="parallel { pipeline = 4  data = 3  recut = on }")
    assert marked(caught.value) == ["on"]
    with pytest.raises(CompileError, match="`workers` needs a job in layers"):
        load(tmp_path, profile([STAGE] * 4), parallel="parallel { workers = 12 }")
