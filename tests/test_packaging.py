"""The wheel holds both packages and the grammar, and works outside the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel would install."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_what_it_needs_and_no_more(installed: Path) -> None:
    assert (installed / "recycle_compiler" / "_grammar" / "job.lark").is_file()
    assert (installed / "recycle_runtime" / "plan" / "isa.py").is_file()
    assert (installed / "recycle_compiler" / "viz" / "pages" / "plan.html").is_file()
    names = {path.name for path in installed.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {
        "recycle_compiler",
        "recycle_runtime",
    }


def test_it_reads_a_job_outside_the_checkout(installed: Path, small_job: str, tmp_path: Path) -> None:
    run = f"import sys; from recycle_compiler.cli.main import main; sys.exit(main(['check', {small_job!r}]))"
    done = subprocess.run(
        [sys.executable, "-c", run],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "ok, job small" in done.stderr
