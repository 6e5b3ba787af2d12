"""`recyclec launch`: scripts that bash accepts, manifests that parse, nothing of the user's that runs."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module, util
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.cli.main import main

Recyclec = Callable[..., tuple[int, str, str]]
ODD = """a 'b' "c" $(touch injected) `touch injected` ; touch injected # ü\\.py"""
RECYCLE_RUN = """#!/bin/bash
printf '%s\\0' "$@" > called.$1
[ "$1" = coordinator ] && exit 3
exit 0
"""
"""What it was called with; the job ends with the status of the coordinator."""
SBATCH = """#!/bin/bash
number=$(($(ls submitted.* 2>/dev/null | wc -l) + 6))
printf '%s\\0' "$@" > submitted.$number
echo "$number;cluster"
"""
SCANCEL = """#!/bin/bash
echo "$@" >> cancelled
"""
ENDS_IN_ORDER = """#!/bin/bash
ending=
trap ending=1 TERM
touch began.$$
until [ "$ending" ]; do /bin/sleep 0.05; done
/bin/sleep 0.3
touch saved.$$
exit 143
"""
"""One that takes a last checkpoint when it is told to end."""
DIES_ONCE = """#!/bin/bash
echo "$1" >> lives
[ "$(wc -l < lives)" = 2 ] || kill -KILL $$
exit 0
"""
STUBS = {
    "recycle-run": RECYCLE_RUN,
    "sbatch": SBATCH,
    "scancel": SCANCEL,
    "sleep": "#!/bin/bash\n",
}


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
    assert "\nname=figure3\nnodes=3\n" in script
    agents = "--nodes=1 --ntasks=1 --cpus-per-task=5 --mem=20G --signal=B:TERM@120 --gpus-per-task=5"
    assert f"\nagents=({agents})\n" in script
    assert "\nboth=(--requeue --open-mode=append --export=ALL --parsable)\n" in script
    manifest = launch(recyclec, "kubernetes", bundle, "--workers-per-node", "5")
    assert "\n  completions: 3\n" in manifest
    assert 'limits: {"nvidia.com/gpu": "5"}' in manifest


def test_the_same_job_gives_the_same_text(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    for system in ("slurm", "kubernetes", "jobset"):
        target = tmp_path / system
        first = launch(recyclec, system, bundle, "--workers-per-node", "2")
        argv = ("launch", system, bundle, "--program", "train.py", "--steps", "50", "--workers-per-node", "2")
        assert recyclec(*argv, "-o", str(target)) == (0, "", "")
        assert target.read_text() == first


def test_tls_is_for_coordinator_and_agents(bundle: str, recyclec: Recyclec) -> None:
    for system, word in (("slurm", " --tls"), ("kubernetes", '            - "--tls"\n')):
        plain, encrypted = (launch(recyclec, system, bundle, *more) for more in ((), ("--tls",)))
        assert word not in plain
        assert encrypted.count(word) == 2 and encrypted.replace(word, "") == plain


def test_no_gpus_without_cuda(bundle: str, recyclec: Recyclec) -> None:
    for system in ("slurm", "kubernetes", "jobset"):
        text = launch(recyclec, system, bundle, "--device", "cpu")
        assert "gpu" not in text
        assert "--checkpoint" not in text


@pytest.mark.parametrize("options", [(), ("--checkpoint", "/kept")])
def test_copies_in_memory_are_the_coordinators_affair(
    bundle: str, recyclec: Recyclec, tmp_path: Path, options: tuple[str, ...]
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", bundle, "--nodes", "2", "--neighbour-copies", "10", *options))
    _, coordinator, agent = _calls(script)
    assert coordinator[-2:] == ["--neighbour-copies", "10"]
    assert "--neighbour-copies" not in agent
    for system in ("kubernetes", "jobset"):
        text = launch(recyclec, system, bundle, "--neighbour-copies", "10", *options)
        words = [line.strip() for line in text.splitlines()]
        at = words.index('- "--neighbour-copies"')
        assert words[at + 1] == '- "10"' and words.count('- "--neighbour-copies"') == 1
        assert words.index('- "coordinator"') < at < words.index('- "agent"')


@pytest.mark.parametrize("checkpoint", [None, "-kept $HOME $(touch injected)"])
def test_the_script_runs_what_was_asked_for(
    bundle: str, recyclec: Recyclec, tmp_path: Path, checkpoint: str | None
) -> None:
    plan = str(shutil.copy(bundle, tmp_path / f"{ODD}.plan"))
    options = [] if checkpoint is None else [f"--checkpoint={checkpoint}"]
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", plan, "--nodes", "2", *options, program=ODD))
    subprocess.run(["bash", "-n", str(script)], check=True)
    folder, coordinator, agent = _calls(script)
    assert not (tmp_path / "injected").exists()
    assert len((folder / "token").read_text()) == 64
    kept = [] if checkpoint is None else ["--checkpoint", f"./{checkpoint}"]
    state = f"{folder}/coordinator"
    assert coordinator == [
        *("coordinator", plan, "--steps", "50", "--listen", "0.0.0.0:0", "--nodes", "2", "--state", state),
        *("--candidate", "0", "--token-file", f"{folder}/token", *kept, *(["--resume"] if kept else [])),
    ]
    assert agent == [
        *("agent", plan, "--program", ODD, "--coordinator", f"{state}/address"),
        *("--coordinator-timeout", "3600", "--workers-per-node", "8", "--device", "cuda"),
        *("--state", f"/tmp/{folder.name}.1.node", "--token-file", f"{folder}/token", *kept),
    ]


def test_what_is_submitted(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    """A coordinator, and agents that come after it; options of the caller come last, and so count."""
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", bundle, "--nodes", "2", "--device", "cpu"))
    folder, *_ = _calls(script, "--partition=x", "--mem=1G")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    assert (folder / "over").read_text() == "3\n"
    assert (folder / "agents").read_text() == "7\n"
    assert (tmp_path / "cancelled").read_text() == "--state=PENDING 7\n"
    first, second = (_words(tmp_path / f"submitted.{number}") for number in (6, 7))
    both = ["--requeue", "--open-mode=append", "--export=ALL", "--parsable"]
    assert first == [
        *("--job-name=figure3-coordinator", f"--output={folder}/coordinator.log", *both),
        *("--ntasks=1", "--cpus-per-task=1", "--mem=2G", "--signal=B:TERM@180", "--partition=x", "--mem=1G"),
        *(str(script), "coordinator", str(folder), "--partition=x", "--mem=1G"),
    ]
    assert second == [
        *("--job-name=figure3", "--array=0-1", "--dependency=after:6", f"--output={folder}/agent-%a.log"),
        *(*both, "--nodes=1", "--ntasks=1", "--cpus-per-task=8", "--mem=32G", "--signal=B:TERM@120"),
        *("--partition=x", "--mem=1G", str(script), "agent", str(folder)),
    ]


def test_a_coordinator_that_was_requeued_after_its_end(
    bundle: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    """It begins again, with other agents; those of before have nothing to do."""
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", bundle, "--nodes", "2"))
    folder, *_ = _calls(script, "--partition=x")
    environment = _environment(tmp_path) | {"SLURM_RESTART_COUNT": "1"}
    (tmp_path / "called.agent").unlink()
    for role, code in (("agent", 0), ("coordinator", 3)):
        words = ["bash", str(script), role, str(folder), "--partition=x"]
        (folder / "coordinator").mkdir(exist_ok=True)
        assert subprocess.run(words, cwd=tmp_path, env=environment, timeout=300).returncode == code
    assert not (tmp_path / "called.agent").exists()
    assert (folder / "coordinator.before-1").is_dir()
    assert _words(tmp_path / "submitted.8")[-4:] == ["--partition=x", str(script), "agent", str(folder)]
    assert (folder / "agents").read_text() == "8\n"


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
    _, coordinator, agent = _calls(script)
    assert not (tmp_path / "injected").exists()
    assert coordinator[:3] == ["coordinator", bundle, "--listen"]
    assert agent[:3] == ["agent", bundle, "--coordinator"]
    assert agent[-len(words) - 2 :] == ["--checkpoint", "kept", *words]
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
    """Slurm tells all processes of the job to end, or only the script."""
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", bundle, "--checkpoint", "kept"))
    environment = _submitted(script)
    (tmp_path / "bin" / "recycle-run").write_text(ENDS_IN_ORDER)
    (tmp_path / "bin" / "sleep").write_text("#!/bin/bash\n/bin/sleep 0.1\n")
    for count, tells in enumerate((os.killpg, os.kill), 1):
        words = ["bash", str(script), "agent", str(_folder(tmp_path))]
        child = subprocess.Popen(words, cwd=tmp_path, env=environment, process_group=0)
        try:
            while len(list(tmp_path.glob("began.*"))) < count:
                assert child.poll() is None
            tells(child.pid, signal.SIGTERM)
            assert child.wait(300) == 143
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        assert len(list(tmp_path.glob("saved.*"))) == len(list(tmp_path.glob("began.*"))) == count
    # It may have to come back to it.
    Path(f"/tmp/{_folder(tmp_path).name}.1.node").rmdir()


def test_what_was_killed_starts_again(bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(launch(recyclec, "slurm", bundle, "--nodes", "2"))
    environment = _submitted(script)
    (tmp_path / "bin" / "recycle-run").write_text(DIES_ONCE)
    words = ["bash", str(script), "coordinator", str(_folder(tmp_path))]
    assert subprocess.run(words, cwd=tmp_path, env=environment, timeout=300).returncode == 0
    assert (tmp_path / "lives").read_text().split() == ["coordinator"] * 2


def _environment(folder: Path) -> dict[str, str]:
    """Of a job, in a cluster that is played by stubs."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    names = {"SLURM_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "1"}
    return names | {"PATH": path, "SLURMD_NODENAME": "localhost"}


def _folder(folder: Path) -> Path:
    """Of the job that was submitted there."""
    (found,) = (path for path in folder.glob("figure3.*") if path.is_dir())
    return found


def _submitted(script: Path, *options: str) -> dict[str, str]:
    """Submit it; the environment of its jobs."""
    commands = script.parent / "bin"
    commands.mkdir()
    for name, text in STUBS.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    environment = _environment(script.parent)
    subprocess.run(
        ["bash", str(script), *options], cwd=script.parent, env=environment, check=True, timeout=300
    )
    return environment


def _words(path: Path) -> list[str]:
    return path.read_text().split("\0")[:-1]


def _calls(script: Path, *options: str) -> tuple[Path, list[str], list[str]]:
    """The folder of a job that is submitted, and what its coordinator and agents are called with."""
    environment, folder = _submitted(script, *options), _folder(script.parent)
    for role, code in (("agent", 0), ("coordinator", 3)):
        words = ["bash", str(script), role, str(folder), *options]
        done = subprocess.run(words, cwd=script.parent, env=environment, timeout=300)
        assert done.returncode == code
    return folder, _words(script.parent / "called.coordinator"), _words(script.parent / "called.agent")


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
        (["slurm", "--image", "x"], "--image is for kubernetes and jobset only"),
        (["kubernetes", "--checkpoint", "kept"], "--checkpoint must begin with / here"),
        (["jobset", "--checkpoint", "kept"], "--checkpoint must begin with / here"),
        (
            ["kubernetes", "--checkpoint", "/a:b"],
            "--checkpoint is where a volume is mounted, and may have no",
        ),
        (
            ["kubernetes", "--checkpoint", "/"],
            "the containers need /var/lib/recycle, /tmp, /dev/shm for others",
        ),
        (
            ["jobset", "--checkpoint", "//tmp/"],
            "the containers need /var/lib/recycle, /tmp, /dev/shm for others",
        ),
        (
            ["jobset", "--checkpoint", "/var/lib"],
            "the containers need /var/lib/recycle, /tmp, /dev/shm for others",
        ),
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


def test_a_script_that_is_told_to_end_before_it_starts_a_command_again(
    bundle: str, recyclec: Recyclec
) -> None:
    """The command has died, and the signal comes while the script waits."""
    _, text, _ = recyclec("launch", "slurm", bundle, "--program", "x.py", "--steps", "1")
    keep = text[text.index("keep() {") :]
    keep = keep[: keep.index("\n}\n") + 3]
    lines = ["set -u", keep, "sleep() { kill -TERM $$; }", "keep bash -c 'echo ran; kill -9 $$'"]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (143, "ran\n")
    assert "No such process" not in done.stderr and "unbound" not in done.stderr
