"""A real Slurm on one machine, and a job submitted to it. Controller and nodes have namespaces of their own.

Nothing of it reaches the machine's network, and all of it ends with the processes that hold the namespaces.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from tests.runtime.recovery.nodes import NamespaceNode, Switch, why_no_namespaces
from tests.runtime.recovery.programs.paces import PACE, PACED
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed

PATIENCE = 400.0
_CONF = """
ClusterName=test
SlurmctldHost=head({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort=6817
SlurmdPort=6818
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmdTimeout=10
KillWait=60
ReturnToService=2
MpiDefault=none
SchedulerParameters=sched_min_interval=0,bf_interval=1,batch_sched_delay=0
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_no_slurm() -> str | None:
    """The reason for which there can be no Slurm here."""
    missing = [tool for tool in ("slurmctld", "slurmd", "sbatch", "scontrol") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed (package slurm-wlm)"
    if os.geteuid() != 0:
        return "only root can start a Slurm"
    return why_no_namespaces()


class Slurm:
    """A controller, and nodes with two cores each."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self.switch = folder, Switch()
        try:
            self._head = self.switch.add("head")
            self.nodes = {f"n{number}": self.switch.add(f"n{number}") for number in range(1, count + 1)}
            self._configure()
            self._log = (folder / "daemons.log").open("ab")
            self._head.start(["slurmctld", "-D"], self._environment, self._log)
            for name in self.nodes:
                self.boot(name)
            self._until_idle()
        except BaseException:
            self.switch.remove()
            raise

    def boot(self, name: str) -> None:
        """Its daemon."""
        self.nodes[name].start(["slurmd", "-D", "-N", name], self._environment, self._log)

    def crash(self, name: str) -> None:
        """Daemon and jobs, all at once."""
        for pid in self.nodes[name].processes():
            os.kill(pid, signal.SIGKILL)

    def call(self, *command: str, **environment: str) -> str:
        """A command on the controller's node."""
        spaces = ["--net", "--pid", "--uts", "--mount"]
        done = subprocess.run(
            ["nsenter", "--target", str(self._head.first), *spaces, f"--wd={self._folder}", "--", *command],
            env=os.environ | self._environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout

    def jobs(self) -> dict[str, tuple[str, str]]:
        """By number, as in `7_0`: state and node of those that are not forgotten."""
        rows = self.call("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T|%N").split()
        return {job: (state, node) for job, state, node in (row.split("|") for row in rows)}

    def end(self) -> None:
        self.switch.remove()
        self._log.close()

    def said(self) -> str:
        return (self._folder / "daemons.log").read_text(errors="replace")[-4000:]

    def _configure(self) -> None:
        every = [self._head, *self.nodes.values()]
        hosts = "".join(f"{node.address} {node.name}\n" for node in every)
        (self._folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        for node in every:
            mount = ["mount", "--bind", str(self._folder / "hosts"), "/etc/hosts"]
            subprocess.run(["nsenter", "--target", str(node.first), "--mount", *mount], check=True)
        lines = [
            f"NodeName={node.name} NodeAddr={node.address} NodeHostname={node.name} CPUs=2 RealMemory=64000"
            for node in self.nodes.values()
        ]
        for name in ("controller", *self.nodes):
            (self._folder / name).mkdir()
        text = _CONF.format(head=self._head.address, folder=self._folder, nodes="\n".join(lines))
        (self._folder / "slurm.conf").write_text(text)
        self._environment = {"SLURM_CONF": str(self._folder / "slurm.conf")}

    def _until_idle(self) -> None:
        deadline = time.monotonic() + 120
        while self._states().count("idle") < len(self.nodes):
            if time.monotonic() > deadline:
                pytest.fail(f"Slurm does not start: {self.said()}", pytrace=False)
            time.sleep(0.5)

    def _states(self) -> list[str]:
        try:
            return self.call("sinfo", "-h", "-N", "-o", "%T").split()
        except AssertionError:
            return []


class SubmittedJob:
    """A job of two pipelines and two stages on two nodes, as `recyclec launch slurm` writes it."""

    def __init__(
        self,
        slurm: Slurm,
        folder: Path,
        bundle: str,
        steps: int,
        *options: str,
        pace: float,
        launch: Sequence[str] = (),
    ) -> None:
        """`pace` is as for `set_pace`, `launch` are more options of `recyclec launch`."""
        self._slurm = slurm
        self._pace = folder / "pace"
        self.set_pace(pace)
        program = changed(folder, TINY, PACED)
        script = folder / "job.sh"
        words = ["launch", "slurm", bundle, "--program", program, "--steps", str(steps), "--device", "cpu"]
        words += ["--workers-per-node", "2", "--checkpoint", str(folder / "kept"), "--name", "tiny", *launch]
        assert main(["--quiet", *words, "-o", str(script)]) == 0
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        surroundings = {"PATH": path, PACE: str(self._pace), "GLOO_SOCKET_IFNAME": "eth0"}
        slurm.call("bash", str(script), *options, **surroundings)
        (self.run,) = slurm_folders(folder)
        self._agents = (self.run / "agents").read_text().strip()
        self.coordinator = str(int(self._agents) - 1)

    def set_pace(self, seconds: float) -> None:
        """Seconds for each micro-batch."""
        aside = self._pace.with_suffix(".new")
        aside.write_text(str(seconds))
        aside.replace(self._pace)

    def agent(self, number: int) -> str:
        return f"{self._agents}_{number}"

    def node_of(self, job: str) -> str:
        return self._slurm.jobs()[job][1]

    def rows(self) -> list[tuple[float, int]]:
        """Of every step, by the journals: its loss, and how many workers made it."""
        found: dict[int, tuple[float, int]] = {}
        folders = [*sorted(self.run.glob("coordinator.before-*")), self.run / "coordinator"]
        for path in (path for folder in folders for path in sorted(folder.glob("**/journal.jsonl"))):
            for line in path.read_text().rpartition("\n")[0].splitlines():
                row = json.loads(line).get("told")
                if row is not None:
                    found[row["step"]] = row["loss"], row["live"]
        assert list(found) == list(range(len(found)))
        return list(found.values())

    def until(self, is_so: Callable[[], bool], what: str) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        while not is_so():
            if time.monotonic() > began + PATIENCE:
                pytest.fail(f"not seen: {what}\n{self._slurm.jobs()}\n{self.said()}", pytrace=False)
            time.sleep(0.3)
        return time.monotonic() - began

    def until_steps(self, more: int, live: int) -> float:
        """The last of which so many workers made."""
        goal = len(self.rows()) + more
        return self.until(
            lambda: len(self.rows()) >= goal and self.rows()[-1][1] == live, f"step {goal} of {live} workers"
        )

    def until_state(self, job: str, *states: str) -> None:
        self.until(lambda: self._slurm.jobs().get(job, ("",))[0] in states, f"job {job} is {states}")

    def a_worker(self, node: NamespaceNode) -> int:
        """A process that says where it is when it is asked."""
        for pid in node.processes():
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
            if int(caught, 16) >> (signal.SIGUSR1 - 1) & 1:
                return pid
        raise AssertionError(f"no worker on {node.name}")

    def check_losses(self) -> None:
        losses = [loss for loss, _ in self.rows()]
        assert losses == pytest.approx(train_alone(TINY, 2, 4, len(losses)).losses, rel=1e-9)

    def said(self) -> str:
        texts = [f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.run.glob("*.log"))]
        return "\n".join([*texts, self._slurm.said()])


def slurm_folders(folder: Path) -> list[Path]:
    """Of the jobs that were submitted there."""
    return [path for path in folder.glob("tiny.*") if path.is_dir()]
