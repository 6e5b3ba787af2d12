"""`recyclec launch`: scripts that bash accepts, manifests that parse, nothing of the user's that runs."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module, util
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.cli.main import main

Recyclec = Callable[..., tuple[int, str, str]]
ODD = """a 'b' "c" $(touch injected) `touch injected` ; touch injected # ü\\.py"""
RECYCLE_RUN = """#!/bin/bash
[ "${#RECYCLE_TOKEN}" = 64 ] || touch no-token
printf '%s\\0' "$@" > new.$$
mv new.$$ called.$$
[ "$SLURM_NODEID" = 0 ] && exit 3
exit 0
"""
"""What it was called with; the job ends with the status of the first node."""
SRUN = """#!/bin/bash
trap : TERM
while [[ $1 == --* ]]; do shift; done
for id in 0 1; do
  SLURM_NODEID=$id "${@:1:4}" "$PWD/own$id" "${@:6}" &
done
until wait; do :; done
while [ "$(jobs -r)" ]; do /bin/sleep 0.05; done
exit 1
"""
"""Here, as two nodes with a folder of their own each; one of them is said to have failed."""
ENDS_IN_ORDER = """#!/bin/bash
ending=
trap ending=1 TERM
touch began.$$
if [ "$SLURM_NODEID" = 1 ]; then
  until [ "$(ls saved.* 2>/dev/null)" ]; do /bin/sleep 0.05; done
  exit 0
fi
until [ "$ending" ]; do /bin/sleep 0.05; done
/bin/sleep 0.3
touch saved.$$
exit 143
"""
"""A first node that takes a last checkpoint when it is told to end, and another that stays as long."""
DIES_ONCE = """#!/bin/bash
echo "$SLURM_NODEID" >> lives
[ "$SLURM_NODEID" = 0 ] || [ "$(grep -c 1 lives)" = 2 ] || kill -KILL $$
exit 0
"""
STUBS = {"recycle-run": RECYCLE_RUN, "srun": SRUN, "sleep": "#!/bin/bash\n"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The running example: 12 workers. How good its plans are does not matter here."""
    path = str(tmp_path_factory.mktemp("bundle") / "figure3.plan")
    example = str(Path(__file__).parents[3] / "examples" / "figure3.job")
    argv = ["--quiet", "compile", example, "-o", path, "--jobs", "1", "--failures", "0"]
    assert main(argv) == 0
    return path


def launch(recyclec: Recyclec, system: str, plan: str, *more: str, program: str = "train.py") -> str:
    code, text, _ = recyclec("launch", system, plan, "--program", program, "--steps", "50", *more)
    assert code == 0
    return text


def test_the_numbers_come_from_the_bundle(bundle: str, recyclec: Recyclec) -> None:
    script = launch(recyclec, "slurm", bundle, "--workers-per-node", "5")
    lines = ["--job-name=figure3", "--nodes=3", "--gpus-per-node=5", "--no-kill"]
    for line in (*lines, "--open-mode=append", "--signal=TERM@120"):
        assert f"\n#SBATCH {line}\n" in script
    assert "--kill-on-bad-exit=0" in script
    manifest = launch(recyclec, "kubernetes", bundle, "--workers-per-node", "5")
    assert "\n  completions: 3\n" in manifest
    assert 'limits: {"nvidia.com/gpu": "5"}' in manifest


def test_the_same_job_gives_the_same_text(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    for system in ("slurm", "kubernetes"):
        target = tmp_path / system
        first = launch(recyclec, system, bundle, "--workers-per-node", "2")
        argv = ("launch", system, bundle, "--program", "train.py", "--steps", "50", "--workers-per-node", "2")
        assert recyclec(*argv, "-o", str(target)) == (0, "", "")
        assert target.read_text() == first


def test_no_gpus_without_cuda(bundle: str, recyclec: Recyclec) -> None:
    for system in ("slurm", "kubernetes"):
        text = launch(recyclec, system, bundle, "--device", "cpu")
        assert "gpu" not in text
        assert "checkpoint" not in text


@pytest.mark.parametrize("checkpoint", [None, "-kept $HOME $(touch injected)"])
def test_the_script_runs_what_was_asked_for(
    bundle: str, recyclec: Recyclec, tmp_path: Path, checkpoint: str | None
) -> None:
    plan = str(shutil.copy(bundle, tmp_path / f"{ODD}.plan"))
    options = [] if checkpoint is None else [f"--checkpoint={checkpoint}"]
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", plan, "--nodes", "2", *options, program=ODD))
    subprocess.run(["bash", "-n", str(script)], check=True)
    calls = _calls(script)
    assert not (tmp_path / "injected").exists()
    assert not (tmp_path / "no-token").exists()
    kept = [] if checkpoint is None else ["--checkpoint", f"./{checkpoint}"]
    assert (tmp_path / "own0").stat().st_mode & 0o777 == 0o700
    (port,) = {call[call.index("--port") + 1] for call in calls}
    assert 20_000 <= int(port) < 30_000
    node = ["node", plan, "--program", ODD, "--steps", "50", "--port", port, "--nodes", "2"]
    node += ["--workers-per-node", "8", "--device", "cuda", "--state", "figure3.7.0.state"]
    node += ["--node-state", "/tmp/figure3.7.0.node", *kept, *(["--resume"] if kept else [])]
    assert calls == [node, node]


def test_a_script_with_its_arguments(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    words = ("train.py", "--rate", "3e-4", ODD, "--", "--nodes", "")
    options = ("--nodes", "2", "--checkpoint", "kept")
    code, text, said = recyclec("launch", "slurm", bundle, *options, *words)
    assert code == 0
    assert said == (
        "recyclec: note: --nodes after train.py goes to the script; options of recyclec launch come before "
        "it\n"
    )
    script = tmp_path / "job.sh"
    script.write_text(text)
    subprocess.run(["bash", "-n", str(script)], check=True)
    first, second = _calls(script)
    assert not (tmp_path / "injected").exists()
    assert "--steps" not in first and "--program" not in first
    assert first == second and first[:3] == ["node", bundle, "--port"]
    assert first[-len(words) - 3 :] == ["--checkpoint", "kept", "--resume", *words]
    code, text, _ = recyclec("launch", "kubernetes", bundle, *words)
    assert code == 0
    command = text[text.index('- "agent"') : text.rindex("resources:")]
    last = [json.dumps(word.replace("$", "$$"), ensure_ascii=False) for word in words]
    assert "".join(f"            - {word}\n" for word in last) in command
    assert '"--steps"' not in text and '"--program"' not in text
    assert len(_documents(text)) == 6


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--program", "p.py"], "--program needs --steps N"),
        (["--steps", "3", "train.py"], "--steps is for --program FILE"),
        ([], "give either a script to run"),
        (["--program", "p.py", "train.py"], "give either a script to run"),
        (["train.py", "a\nb"], "of the script must be text without line ends"),
    ],
)
def test_what_to_train_is_said_once(bundle: str, recyclec: Recyclec, words: list[str], why: str) -> None:
    code, _, said = recyclec("launch", "slurm", bundle, *words)
    assert code == 2 and why in said


def test_the_script_waits_for_a_last_checkpoint(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    """All processes are told to end at once, as Slurm does; a node that ends then is left alone."""
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", bundle, "--nodes", "2", "--checkpoint", "kept"))
    commands = _commands(
        tmp_path, STUBS | {"recycle-run": ENDS_IN_ORDER, "sleep": "#!/bin/bash\n/bin/sleep 0.1\n"}
    )
    child = subprocess.Popen(["bash", str(script)], cwd=tmp_path, env=commands, process_group=0)
    try:
        while len(list(tmp_path.glob("began.*"))) < 2:
            assert child.poll() is None
        os.killpg(child.pid, signal.SIGTERM)
        assert child.wait(120) == 143
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert len(list(tmp_path.glob("saved.*"))) == 1
    assert len(list(tmp_path.glob("began.*"))) == 2


def test_a_node_that_was_killed_starts_again(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", bundle, "--nodes", "2"))
    commands = _commands(tmp_path, STUBS | {"recycle-run": DIES_ONCE})
    assert subprocess.run(["bash", str(script)], cwd=tmp_path, env=commands, timeout=120).returncode == 0
    assert sorted((tmp_path / "lives").read_text().split()) == ["0", "1", "1"]


def _commands(folder: Path, stubs: Mapping[str, str]) -> dict[str, str]:
    """The environment of a cluster of two nodes that is played by stubs."""
    commands = folder / "bin"
    commands.mkdir()
    for name, text in stubs.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return {"PATH": f"{commands}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}


def _calls(script: Path) -> list[list[str]]:
    """What the script calls `recycle-run` with, on a cluster of two nodes that is played by stubs."""
    environment = _commands(script.parent, STUBS)
    done = subprocess.run(["bash", str(script)], cwd=script.parent, env=environment, check=False, timeout=120)
    assert done.returncode == 3
    return [path.read_text().split("\0")[:-1] for path in script.parent.glob("called.*")]


def test_the_manifest_holds_what_was_asked_for(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    plan = str(shutil.copy(bundle, tmp_path / f"{ODD}.plan"))
    options = ("--checkpoint", f"/kept {ODD}", "--image", f"image {ODD}", "--name", "my-job")
    text = launch(recyclec, "kubernetes", plan, "--workers-per-node", "2", *options, program=ODD)
    # The name of a variable in $(...) would be replaced; a doubled dollar stands for one.
    doubled = ODD.replace("$", "$$")
    for word in (doubled, plan.replace("$", "$$"), f"/kept {doubled}"):
        assert f"\n            - {json.dumps(word, ensure_ascii=False)}\n" in text
    assert text.count(json.dumps(f"image {ODD}", ensure_ascii=False)) == 2
    parts = _documents(text)
    kinds = [(part["kind"], part["metadata"]["name"]) for part in parts]
    assert kinds == [
        ("Service", "my-job-coordinator"),
        ("PersistentVolumeClaim", "my-job-state"),
        ("PodDisruptionBudget", "my-job-coordinator"),
        ("PodDisruptionBudget", "my-job-agents"),
        ("Job", "my-job-coordinator"),
        ("Job", "my-job-agents"),
    ]


def _documents(text: str) -> list[dict[str, Any]]:
    """The documents of a manifest; without a YAML library, kind and name after a look at every line."""
    if util.find_spec("yaml") is not None:
        yaml = import_module("yaml")
        return list(yaml.safe_load_all(text))
    return [_outline(part) for part in text.split("\n---\n")]


def _outline(text: str) -> dict[str, Any]:
    """Every line is a list item, a key, or both, and what has quotes or braces is JSON."""
    name, kind, before = "", "", 0
    for line in text.splitlines():
        if not (words := line.strip()) or words.startswith("#"):
            assert words
            continue
        indent = len(line) - len(line.lstrip())
        assert indent % 2 == 0
        assert indent <= before + 4
        before = indent
        value = words.removeprefix("- ")
        if value[0] not in '"{':
            key, colon, value = value.partition(":")
            assert colon
            assert key.isalpha()
            value = value.strip()
            name = json.loads(value) if (indent, key) == (2, "name") else name
            kind = value if (indent, key) == (0, "kind") else kind
        if value[:1] in ('"', "{", "["):
            json.loads(value)
    return {"kind": kind, "metadata": {"name": name}}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ["slurm", "--workers-per-node", "5", "--nodes", "2"],
            "--nodes 2 with --workers-per-node 5 is too few: the job has 12 worker",
        ),
        (["slurm", "--name", "Job"], "--name must be up to 40 small letters, digits and dashes"),
        (["kubernetes", "--name", "x" * 41], "--name must be up to 40 small letters"),
        (["slurm", "--name", "x\n#SBATCH"], "--name must be up to 40 small letters"),
        (["slurm", "--checkpoint", "a\nb"], "--checkpoint must be text without line ends and the like"),
        (["slurm", "--image", "x"], "--image is for kubernetes only"),
        (["kubernetes", "--checkpoint", "kept"], "--checkpoint must begin with / here"),
    ],
)
def test_what_cannot_be_meant(argv: list[str], words: str, bundle: str, recyclec: Recyclec) -> None:
    code, data, said = recyclec("launch", argv[0], bundle, "--program", "x.py", "--steps", "1", *argv[1:])
    assert (code, data) == (2, "")
    assert words in said
    assert said.count("\n") == 1


def test_a_file_that_is_no_bundle(tmp_path: Path, recyclec: Recyclec) -> None:
    path = tmp_path / "x.plan"
    path.write_text("hello")
    said = recyclec("launch", "slurm", str(path), "--program", "x.py", "--steps", "1")
    assert said == (1, "", f"recyclec: error: {path}: not a bundle: it does not begin like one\n")


def test_a_node_that_would_end_the_job_is_named(bundle: str, recyclec: Recyclec) -> None:
    argv = ("launch", "slurm", bundle, "--program", "x.py", "--steps", "1", "--workers-per-node")
    for bearable in ("2", "4", "8", "11"):
        assert recyclec(*argv, bearable)[2] == ""
    assert recyclec(*argv, "12")[2] == (
        "recyclec: note: all workers of each of the stages 0, 1, 2, 3 are on one node, whose failure ends "
        "the job; with --workers-per-node 11 or less the job survives the failure of any node\n"
    )
