"""What users copy into their CI tells good jobs and plans from bad ones."""

import os
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


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "tiny.job").write_text(JOB)
    made = "recyclec fmt jobs/tiny.job && recyclec compile jobs/tiny.job -o jobs/tiny.plan"
    assert run(made, tmp_path) == 0
    return tmp_path


def steps() -> dict[str, str]:
    workflow = yaml.safe_load((FOLDER / "recyclec-workflow.yml").read_text())
    return {step["name"]: step["run"] for step in workflow["jobs"]["plans"]["steps"] if "name" in step}


def test_the_workflow_passes_what_was_reviewed(repository: Path) -> None:
    named = steps()
    assert run(named["Jobs are right and in canonical form"], repository) == 0
    assert run(named["Plans are what was reviewed"], repository) == 0


def test_the_workflow_refuses_what_was_not(repository: Path) -> None:
    job = repository / "jobs" / "tiny.job"
    job.write_text(job.read_text().replace("microbatches = 2", "microbatches = 3"))
    assert run(steps()["Plans are what was reviewed"], repository) != 0
    job.write_text(job.read_text().replace("\n", "\n\n"))
    assert run(steps()["Jobs are right and in canonical form"], repository) != 0


def test_the_hooks_look_at_every_file(repository: Path) -> None:
    config = yaml.safe_load((FOLDER / "pre-commit-config.yaml").read_text())
    good = (repository / "jobs" / "tiny.job").read_text()
    (repository / "bad.job").write_text(good.replace("pipeline", "pipelin").replace("\n", "\n\n"))
    for hook in config["repos"][0]["hooks"]:
        assert run(f"{hook['entry']} jobs/tiny.job jobs/tiny.job", repository) == 0
        assert run(f"{hook['entry']} jobs/tiny.job bad.job", repository) != 0
