"""Plans for today's op times, made and compared by processes while training goes on. Standard library only.

One request at a time. Each candidate is planned with today's times and timed with them, and so is the plan in
use, so that what is compared is the same day. For a worker that is slower than its peers there are two more
candidates: a plan that gives it less to do, and one that counts it as lost, so that it only watches.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from recycle_runtime.coordinator.planner import die_with_parent
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle, BundleError

_TICKS = "step_ticks"


class Candidate(NamedTuple):
    """A plan for the same losses, in which some live workers have less to do, or only watch."""

    path: Path
    failed: tuple[Worker, ...]
    """As the plan counts them: the lost and those who watch."""
    watchers: tuple[Worker, ...] = ()
    lighter: Mapping[Worker, float] = MappingProxyType({})
    """Those who have less to do, each with how many times longer it takes than its peers."""


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
        self._left: deque[tuple[Candidate | None, list[str]]] = deque()
        self._about: Candidate | None = None
        """Of the process that runs; None for the plan in use."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ticks: dict[Path | None, float] = {}
        """Of a step: of candidates by their paths, and of the plan in use."""
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
        *,
        may_be_lighter: bool,
    ) -> None:
        """Begin: a plan in which all do the same, and if some are `slow`, those for them."""
        self.stop()
        command = recyclec()
        if command is None:
            self.error = "recyclec is not there"
            return
        times = self._folder / "today.job"
        times.write_text(job, encoding="utf-8")
        self._candidates = [self._candidate(lost)]
        if slow and may_be_lighter:
            self._candidates.append(self._candidate(lost, lighter=slow))
        if slow:
            self._candidates.append(self._candidate(lost, watchers=slow))
        quiet = [command, "--quiet"]
        self._left.append((None, [*quiet, *_retime(in_use.path, in_use.failed, times, in_use.slow)]))
        for candidate in self._candidates:
            self._left.append((candidate, [*quiet, *_plan(times, candidate)]))
            working = {worker: by for worker, by in slow.items() if worker not in candidate.watchers}
            timing = _retime(candidate.path, candidate.failed, times, working)
            self._left.append((candidate, [*quiet, *timing]))
        self._next()

    def made(self) -> list[Offer] | None:
        """What has come of it, once; None while there is nothing, or nothing will come."""
        if self._process is None or self._process.poll() is None:
            return None
        process, self._process = self._process, None
        said, complaint = (text.decode(errors="replace").strip() for text in process.communicate())
        if process.returncode != 0:
            self._without(self._about, complaint or f"recyclec ended with status {process.returncode}")
        try:
            if said and process.returncode == 0:
                self._ticks[self._about and self._about.path] = float(json.loads(said)[_TICKS])
            if self._left:
                self._next()
                return None
            return None if self.error else self._offers()
        except (OSError, BundleError, ValueError, KeyError) as error:
            self._left.clear()
            self.error = str(error)
            return None

    def _without(self, failed: Candidate | None, why: str) -> None:
        """One that cannot be made is left out; without any, or the plan in use, there is no answer."""
        self._candidates = [one for one in self._candidates if one is not failed]
        self._left = deque(entry for entry in self._left if entry[0] is not failed)
        if failed is None or not self._candidates:
            self._left.clear()
            self.error = why

    def stop(self) -> None:
        self.error = ""
        self._left.clear()
        self._ticks = {}
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _candidate(
        self,
        lost: Collection[Worker],
        watchers: Collection[Worker] = (),
        lighter: Mapping[Worker, float] = MappingProxyType({}),
    ) -> Candidate:
        self._count += 1
        failed = tuple(sorted({*lost, *watchers}))
        # Another coordinator of the same job may have left plans here.
        path = self._folder / f"today-{os.getpid()}-{self._count}.plan"
        return Candidate(path, failed, tuple(sorted(watchers)), lighter)

    def _next(self) -> None:
        self._about, command = self._left.popleft()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )

    def _offers(self) -> list[Offer]:
        now = self._ticks[None]
        return [
            Offer(candidate, Bundle.read(candidate.path), 1 - self._ticks[candidate.path] / now)
            for candidate in self._candidates
        ]


def best_offer(offers: Collection[Offer], least: float) -> Offer | None:
    """The one that saves most, and the share that is asked for at least; of equals the plainest."""
    good = [offer for offer in offers if offer.saving >= least]

    def rank(offer: Offer) -> tuple[float, int, int]:
        return -offer.saving, len(offer.candidate.watchers), len(offer.candidate.lighter)

    return min(good, key=rank, default=None)


def _plan(times: Path, candidate: Candidate) -> list[str]:
    out = ["-o", str(candidate.path)]
    if not candidate.failed and not candidate.lighter:
        return ["compile", str(times), "--failures", "0", "--jobs", "1", *out]
    failed = ["--failed", _names(candidate.failed)] if candidate.failed else []
    return ["plan", str(times), *failed, *_slow(candidate.lighter), *out]


def _retime(plan: Path, failed: Collection[Worker], times: Path, slow: Mapping[Worker, float]) -> list[str]:
    which = ["--failed", _names(failed)] if failed else ["--failures", "0"]
    return ["retime", str(plan), *which, "--times", str(times), "--json", *_slow(slow)]


def _slow(workers: Mapping[Worker, float]) -> list[str]:
    words = [f"{p}:{s}={by:.3f}" for (p, s), by in sorted(workers.items())]
    return ["--slow", ",".join(words)] if words else []


def _names(workers: Collection[Worker]) -> str:
    return ",".join(f"{pipeline}:{stage}" for pipeline, stage in sorted(workers))


def recyclec() -> str | None:
    beside = Path(sys.executable).parent / "recyclec"
    return str(beside) if beside.exists() else shutil.which("recyclec")
