"""The recipe for an image: what it copies is there, and is what the package is built from."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "examples" / "Dockerfile").read_text(encoding="utf-8")


def copied() -> list[str]:
    lines = re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE)
    return [word for line in lines for word in line.split()[:-1]]


def test_what_is_copied_is_there() -> None:
    assert copied()
    for name in copied():
        assert (ROOT / name).exists(), name


def test_the_package_can_be_built_from_it() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        about = tomllib.load(file)
    wheel = about["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", about["project"]["readme"], *about["project"]["license-files"]}
    needed |= {name.partition("/")[0] for name in (*wheel["packages"], *wheel["force-include"])}
    assert needed <= set(copied())
    # The versions that are known to work.
    assert "-c constraints.txt" in DOCKERFILE and "constraints.txt" in copied()


def test_it_runs_as_the_manifest_asks() -> None:
    jobs = (ROOT / "recycle_compiler" / "launch" / "kubernetes_jobs.j2").read_text(encoding="utf-8")
    (user,) = set(re.findall(r'"runAsUser": (\d+)', jobs))
    (group,) = set(re.findall(r'"runAsGroup": (\d+)', jobs))
    assert DOCKERFILE.rstrip().endswith(f"USER {user}:{group}")
