"""The manifest with a JobSet: shaped as documented, and its Jobs valid for every supported Kubernetes.

There is no cluster here: what the shape, the schemas and these tests say is all that is known.
"""

from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest

from recycle_compiler.launch.layout import lay_out_nodes
from recycle_compiler.launch.render import Launch, render_launch
from tests.compiler.launch.jobset_shape import problems

yaml: Any = pytest.importorskip("yaml")
VERSIONS = [f"1.{minor}" for minor in range(31, 38)]
LONGEST = "a" * 40


def manifest(
    system: str = "jobset",
    *,
    device: str = "cuda",
    checkpoint: str | None = "/kept",
    script: tuple[str, ...] = (),
    workers: int = 4,
    name: str = "job",
) -> list[dict[str, Any]]:
    layout = lay_out_nodes(4, 3, 1, workers_per_node=workers)
    program, steps = (None, None) if script else ("train.py", 50)
    launch = Launch(name, "a.plan", program, script, steps, device, layout, checkpoint, "recycle:1")
    return list(yaml.safe_load_all(render_launch(system, launch)))


def jobs_of(parts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specs of its Jobs."""
    return {job["name"]: job["template"]["spec"] for job in parts[-1]["spec"]["replicatedJobs"]}


ALL = [manifest(), manifest(device="cpu", checkpoint=None, script=("t.py", "--x"), workers=12, name=LONGEST)]


@pytest.mark.parametrize("parts", ALL)
def test_it_is_shaped_as_documented(parts: list[dict[str, Any]]) -> None:
    assert [part["kind"] for part in parts] == [
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "PodDisruptionBudget",
        "JobSet",
    ]
    assert problems(parts[-1]) == []


def test_the_shape_refuses_what_is_wrong() -> None:
    for path, value, words in (
        (("spec", "failurePolicy", "maxRestart"), 3, "maxRestart is no field"),
        (("spec", "successPolicy", "operator"), "Some", "must be one of ['All', 'Any']"),
        (("spec", "network", "enableDNSHostnames"), "yes", "must be bool"),
        (("spec", "replicatedJobs", 0, "replicas"), "1", "must be int"),
        (("spec", "successPolicy", "targetReplicatedJobs"), ["x"], "x is no replicated job"),
        (("spec", "network", "subdomain"), "a.b", "a.b is no DNS label"),
        (("metadata", "name"), "a" * 42, "is no DNS label"),
        (("spec", "failurePolicy", "rules", 0, "name"), "a-b", "a-b is no name for a rule"),
    ):
        jobset = deepcopy(ALL[0][-1])
        at: Any = jobset
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        assert any(words in each for each in problems(jobset)), path
    jobset = deepcopy(ALL[0][-1])
    del jobset["spec"]["replicatedJobs"][0]["template"]
    assert problems(jobset) == ["JobSet.spec.replicatedJobs[0].template is missing"]


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_kubernetes_accept_its_jobs(version: str) -> None:
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate, a dev dependency, is missing")
    validate: Any = import_module("kubernetes_validate").validate
    for parts in ALL:
        metadata = {"name": "job"}
        jobs = [
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
            for spec in jobs_of(parts).values()
        ]
        for part in (*parts[:-1], *jobs):
            assert validate(part, version, strict=True) == version


def test_its_jobs_are_those_of_the_plain_manifest() -> None:
    """But for the coordinator's name, and for what JobSet wants to be indexed."""
    parts = manifest("kubernetes")
    coordinator, agents = (part["spec"] for part in parts if part["kind"] == "Job")
    found = jobs_of(ALL[0])
    assert found["coordinator"] == coordinator | {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
    }
    (container,) = agents["template"]["spec"]["containers"]
    where = container["command"].index("--coordinator") + 1
    assert container["command"][where] == "job-coordinator:29500"
    container["command"][where] = "job-coordinator-0-0.job:29500"
    assert found["agents"] == agents


def test_a_lost_agent_restarts_nobody_else() -> None:
    spec = ALL[0][-1]["spec"]
    agents = jobs_of(ALL[0])["agents"]
    # Its own Job replaces a pod, and as good as never fails.
    assert agents["backoffLimit"] >= 1000 and "podFailurePolicy" not in agents
    assert agents["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert spec["failurePolicy"]["maxRestarts"] == 0
    assert {rule["action"] for rule in spec["failurePolicy"]["rules"]} == {"FailJobSet"}


def test_the_job_is_over_when_the_coordinator_is() -> None:
    spec = ALL[0][-1]["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["coordinator"]}
    (container,) = jobs_of(ALL[0])["agents"]["template"]["spec"]["containers"]
    host = f"job-coordinator-0-0.{spec['network']['subdomain']}"
    assert f"{host}:29500" in container["command"]
    assert spec["network"]["enableDNSHostnames"] is True


def test_budgets_select_its_pods() -> None:
    parts = ALL[0]
    for budget, job in zip(parts[1:3], ("coordinator", "agents"), strict=True):
        labels = jobs_of(parts)[job]["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"] == labels
