"""Plans for today's op times, made and compared by processes while training goes on. Standard library only.

One request at a time. Each candidate is planned with today's times and timed with them, and so is the plan in
use, so that what is compared is the same day. A worker that is slower than its peers has a plan of its own
among the candidates: one that counts it as lost, so that it only watches.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle, BundleError
from recycle_runtime.coordinator.planner import die_with_parent

_TICKS = "step_ticks"


class Candidate(NamedTuple):
    """A plan for the same losses, in which some live workers only watch."""

    path: Path
    failed: tuple[Worker, ...]
    """As the plan counts them: the lost and those who watch."""
    watchers: tuple[Worker, ...]


class InUse(NamedTuple):
    """The plan that runs now."""

    path: Path
    failed: tuple[Worker, ...]
    slow: Mapping[Worker, float]
    """Roles of workers that are slower than their peers, each with its factor."""


class Offer(NamedTuple):
    """A candidate that has been made."""

    candidate: Candidate
    bundle: Bundle
    saving: float
    """Of a step as it is now, as a share; less than 0 if it would take longer."""


class Replanner:
    """Plans and times candidates, one process after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._left: deque[list[str]] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: list[str] = []
        self._candidates: list[Candidate] = []
        self.error = ""
        """Why the last request came to nothing."""

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    def ask(
        self,
        job: str,
        in_use: InUse,
        lost: Collection[Worker],
        slow: Mapping[Worker, float],
        watchers: Collection[Worker],
    ) -> None:
        """Begin: a plan with everybody, and, if there are `watchers`, one in which they watch."""
        self.stop()
        command = recyclec()
        if command is None:
            self.error = "recyclec is not there"
            return
        times = self._folder / "today.job"
        times.write_text(job, encoding="utf-8")
        self._candidates = [self._candidate(lost, ())]
        if watchers:
            self._candidates.append(self._candidate(lost, watchers))
        quiet = [command, "--quiet"]
        self._left.append([*quiet, *_retime(in_use.path, in_use.failed, times, in_use.slow)])
        for candidate in self._candidates:
            self._left.append([*quiet, *_plan(times, candidate)])
            working = {worker: by for worker, by in slow.items() if worker not in candidate.watchers}
            self._left.append([*quiet, *_retime(candidate.path, candidate.failed, times, working)])
        self._next()

    def made(self) -> list[Offer] | None:
        """What has come of it, once; None while there is nothing, or nothing will come."""
        if self._process is None or self._process.poll() is None:
            return None
        process, self._process = self._process, None
        said, complaint = (text.decode(errors="replace").strip() for text in process.communicate())
        if process.returncode != 0:
            self.error = complaint or f"recyclec ended with status {process.returncode}"
            self._left.clear()
            return None
        self._said.append(said)
        if self._left:
            self._next()
            return None
        try:
            return self._offers()
        except (OSError, BundleError, ValueError, KeyError) as error:
            self.error = str(error)
            return None

    def stop(self) -> None:
        self.error = ""
        self._left.clear()
        self._said = []
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _candidate(self, lost: Collection[Worker], watchers: Collection[Worker]) -> Candidate:
        self._count += 1
        failed = tuple(sorted({*lost, *watchers}))
        # Another coordinator of the same job may have left plans here.
        path = self._folder / f"today-{os.getpid()}-{self._count}.plan"
        return Candidate(path, failed, tuple(sorted(watchers)))

    def _next(self) -> None:
        self._process = subprocess.Popen(
            self._left.popleft(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )

    def _offers(self) -> list[Offer]:
        now, *others = (float(json.loads(text)[_TICKS]) for text in self._said if text)
        return [
            Offer(candidate, Bundle.read(candidate.path), 1 - step / now)
            for candidate, step in zip(self._candidates, others, strict=True)
        ]


def best_offer(offers: Collection[Offer], least: float) -> Offer | None:
    """The one that saves most, and the share that is asked for at least; fewer watchers if they are equal."""
    good = [offer for offer in offers if offer.saving >= least]
    return min(good, key=lambda offer: (-offer.saving, len(offer.candidate.watchers)), default=None)


def _plan(times: Path, candidate: Candidate) -> list[str]:
    out = ["-o", str(candidate.path)]
    if not candidate.failed:
        return ["compile", str(times), "--failures", "0", "--jobs", "1", *out]
    return ["plan", str(times), "--failed", _names(candidate.failed), *out]


def _retime(plan: Path, failed: Collection[Worker], times: Path, slow: Mapping[Worker, float]) -> list[str]:
    which = ["--failed", _names(failed)] if failed else ["--failures", "0"]
    workers = [f"{p}:{s}={by:.3f}" for (p, s), by in sorted(slow.items())]
    return ["retime", str(plan), *which, "--times", str(times), "--json", *_if_any("--slow", workers)]


def _if_any(option: str, words: list[str]) -> list[str]:
    return [option, ",".join(words)] if words else []


def _names(workers: Collection[Worker]) -> str:
    return ",".join(f"{pipeline}:{stage}" for pipeline, stage in sorted(workers))


def recyclec() -> str | None:
    beside = Path(sys.executable).parent / "recyclec"
    return str(beside) if beside.exists() else shutil.which("recyclec")
