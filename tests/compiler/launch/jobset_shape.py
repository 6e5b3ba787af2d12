"""Shape of a JobSet: the fields of jobset.x-k8s.io/v1alpha2 as its reference documents them, and the rules
that its admission webhook adds. Kubernetes' own schemas know nothing of it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

Shape = Any
"""A type, a set of words, a list of one shape, or fields, of which those must be there that end in `!`."""

_NAMES: Shape = [str]
SHAPE: Shape = {
    "apiVersion!": {"jobset.x-k8s.io/v1alpha2"},
    "kind!": {"JobSet"},
    "metadata!": {"name!": str, "labels": dict, "annotations": dict, "namespace": str},
    "spec!": {
        "replicatedJobs!": [
            {
                "name!": str,
                "replicas": int,
                "groupName": str,
                "template!": {"metadata": {"labels": dict, "annotations": dict}, "spec!": dict},
                "dependsOn": [{"name!": str, "status!": {"Ready", "Complete"}}],
            }
        ],
        "network": {"enableDNSHostnames": bool, "subdomain": str, "publishNotReadyAddresses": bool},
        "successPolicy": {"operator!": {"All", "Any"}, "targetReplicatedJobs": _NAMES},
        "failurePolicy": {
            "maxRestarts": int,
            "restartStrategy": {"Recreate", "BlockingRecreate"},
            "rules": [
                {
                    "name!": str,
                    # Those of 0.6, which newer ones have too.
                    "action!": {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"},
                    "onJobFailureReasons": _NAMES,
                    "targetReplicatedJobs": _NAMES,
                }
            ],
        },
        "startupPolicy": {"startupPolicyOrder!": {"AnyOrder", "InOrder"}},
        "suspend": bool,
        "coordinator": {"replicatedJob!": str, "jobIndex": int, "podIndex": int},
        "managedBy": str,
        "ttlSecondsAfterFinished": int,
    },
}
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_RULE = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_SUFFIX = "-abcde"
"""Kubernetes adds as much to the names of pods."""


def problems(value: Any) -> list[str]:
    """Everything that is wrong with it."""
    found = list(_misshapen(value, SHAPE, "JobSet"))
    return found or list(_broken_rules(value))


def _misshapen(value: Any, shape: Shape, where: str) -> Iterator[str]:
    match shape:
        case dict():
            yield from _misshapen_fields(value, shape, where)  # pyright: ignore[reportUnknownArgumentType]
        case list():
            if not isinstance(value, list):
                yield f"{where} must be a list"
                return
            for number, each in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                yield from _misshapen(each, shape[0], f"{where}[{number}]")  # pyright: ignore[reportUnknownArgumentType]
        case set():
            if value not in shape:
                yield f"{where} must be one of {sorted(shape)}, got {value!r}"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case _:
            if type(value) is not shape:
                yield f"{where} must be {shape.__name__}, got {value!r}"


def _misshapen_fields(value: Any, shape: Mapping[str, Shape], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} must have fields"
        return
    fields = cast(dict[str, Any], value)
    known = {name.removesuffix("!"): each for name, each in shape.items()}
    for name in shape:
        if name.endswith("!") and name[:-1] not in fields:
            yield f"{where}.{name[:-1]} is missing"
    for name, each in fields.items():
        if name not in known:
            yield f"{where}.{name} is no field"
        else:
            yield from _misshapen(each, known[name], f"{where}.{name}")


def _broken_rules(jobset: Any) -> Iterator[str]:
    """Reasons for which the webhook refuses it."""
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    if len(jobs) < len(spec["replicatedJobs"]):
        yield "two replicated jobs have one name"
    failure = spec.get("failurePolicy", {})
    for policy in (spec.get("successPolicy", {}), *failure.get("rules", [])):
        for target in policy.get("targetReplicatedJobs", []):
            if target not in jobs:
                yield f"{target} is no replicated job"
    for rule in failure.get("rules", []):
        if _RULE.fullmatch(rule["name"]) is None:
            yield f"{rule['name']} is no name for a rule"
    subdomain = spec.get("network", {}).get("subdomain", name)
    for job in jobs.values():
        last = job["template"]["spec"].get("completions", 1) - 1
        host = f"{name}-{job['name']}-{job.get('replicas', 1) - 1}-{last}"
        for label in (subdomain, f"{host}{_SUFFIX}"):
            if _LABEL.fullmatch(label) is None:
                yield f"{label} is no DNS label"
