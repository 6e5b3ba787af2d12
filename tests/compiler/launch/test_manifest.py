"""The manifest for Kubernetes: valid for every version that is supported, and careful with what it may do.

There is no cluster here: what the schemas and these tests say is all that is known.
"""

from importlib import import_module
from typing import Any

import pytest

from recycle_compiler.launch.layout import lay_out_nodes
from recycle_compiler.launch.render import Launch, render_launch

yaml: Any = pytest.importorskip("yaml")
VERSIONS = [f"1.{minor}" for minor in range(31, 38)]


def manifest(
    *, device: str = "cuda", checkpoint: str | None = "/kept", script: tuple[str, ...] = (), workers: int = 4
) -> list[dict[str, Any]]:
    layout = lay_out_nodes(4, 3, 1, workers_per_node=workers)
    program, steps = (None, None) if script else ("train.py", 50)
    launch = Launch("job", "a.plan", program, script, steps, device, layout, checkpoint, "recycle:1")
    return list(yaml.safe_load_all(render_launch("kubernetes", launch)))


def only(parts: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [part for part in parts if (part["kind"], part["metadata"]["name"]) == (kind, name)]
    return found["spec"]


def pods(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [only(parts, "Job", name)["template"]["spec"] for name in ("job-coordinator", "job-agents")]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_kubernetes_accept_it(version: str) -> None:
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate, a dev dependency, is missing")
    validate: Any = import_module("kubernetes_validate").validate
    for parts in (manifest(), manifest(device="cpu", checkpoint=None, script=("t.py", "--x"), workers=12)):
        for part in parts:
            assert validate(part, version, strict=True) == version
        job = next(part for part in parts if part["kind"] == "Job")
        job["spec"]["backofLimit"] = 3
        with pytest.raises(Exception, match="backofLimit"):
            validate(job, version, strict=True)


def test_a_pod_may_do_little_and_has_time_to_end() -> None:
    for pod in pods(manifest()):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        # A last checkpoint may take 60 s, `coordinator --stop-timeout`.
        assert pod["terminationGracePeriodSeconds"] >= 60 + 10
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        (secret,) = [each["valueFrom"] for each in container["env"] if each["name"] == "RECYCLE_TOKEN"]
        assert secret == {"secretKeyRef": {"name": "job-token", "key": "token"}}


@pytest.mark.parametrize("checkpoint", [None, "/kept"])
def test_what_is_written_to_is_mounted(checkpoint: str | None) -> None:
    for pod in pods(manifest(checkpoint=checkpoint)):
        (container,) = pod["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/var/lib/recycle"} <= set(mounts)
        assert ("/kept" in mounts) == (checkpoint is not None)
        assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}


def test_the_coordinator_is_probed_where_it_listens() -> None:
    (container,) = pods(manifest())[0]["containers"]
    (port,) = container["ports"]
    assert f"$(POD_IP):{port['containerPort']}" in container["command"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["tcpSocket"] == {"port": port["name"]}


def test_a_coordinator_that_was_killed_starts_again_and_one_that_ended_does_not() -> None:
    rules = only(manifest(), "Job", "job-coordinator")["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["FailJob", "Ignore"]
    assert rules[0]["onExitCodes"] == {"operator": "In", "values": [1, 2, 3, 143]}
    assert rules[1]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


@pytest.mark.parametrize(("workers", "stay"), [(4, 2), (12, 1)])
def test_as_many_nodes_may_be_drained_as_the_job_can_do_without(workers: int, stay: int) -> None:
    parts = manifest(workers=workers)
    for name, least in (("job-coordinator", 1), ("job-agents", stay)):
        budget = only(parts, "PodDisruptionBudget", name)
        assert budget["minAvailable"] == least
        labels = only(parts, "Job", name)["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"] == labels
