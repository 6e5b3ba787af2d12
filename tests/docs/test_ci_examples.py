"""Configurations that users copy into their CI tell good jobs and plans from bad ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml", reason="PyYAML comes with packages of the `dev` extra")
FOLDER = Path(__file__).parents[2] / "examples" / "ci"
JOB = """\
job tiny {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 2 }
  profile  { forward = 1  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 1 }
}
"""


def run(text: str, folder: Path) -> int:
    """As a step of GitHub's runs; the exit code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(shell, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True).returncode


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "jobs").mkdir()
    (folder / "jobs" / "tiny.job").write_text(JOB)
    made = "recyclec fmt jobs/tiny.job && recyclec compile jobs/tiny.job -o jobs/tiny.plan"
    assert run(made, folder) == 0
    return folder


def steps() -> dict[str, str]:
    workflow = yaml.safe_load((FOLDER / "recyclec-workflow.yml").read_text())
    return {step["name"]: step["run"] for step in workflow["jobs"]["plans"]["steps"] if "name" in step}


def test_the_workflow_passes_what_was_reviewed_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    right, reviewed = steps()["Jobs are right and in canonical form"], steps()["Plans are what was reviewed"]
    assert run(f"{right}\n{reviewed}", repository) == 0
    shutil.copytree(repository / "jobs", tmp_path / "jobs")
    job = tmp_path / "jobs" / "tiny.job"
    job.write_text(job.read_text().replace("microbatches = 2", "microbatches = 3"))
    assert run(reviewed, tmp_path) != 0
    job.write_text(job.read_text().replace("\n", "\n\n"))
    assert run(right, tmp_path) != 0


def test_the_hooks_look_at_every_file(tmp_path: Path, repository: Path) -> None:
    config = yaml.safe_load((FOLDER / "pre-commit-config.yaml").read_text())
    good = (repository / "jobs" / "tiny.job").read_text()
    (tmp_path / "good.job").write_text(good)
    (tmp_path / "bad.job").write_text(good.replace("pipeline", "pipelin").replace("\n", "\n\n"))
    for hook in config["repos"][0]["hooks"]:
        assert run(f"{hook['entry']} good.job good.job", tmp_path) == 0
        assert run(f"{hook['entry']} good.job bad.job", tmp_path) != 0
