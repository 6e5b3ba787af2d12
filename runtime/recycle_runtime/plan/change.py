"""A change of a running job, and whether it pays. Standard library only.

Workers that move to other stages, layers that travel to another cut, plans for measured op times: each saves
a share of every step until the job's workers change again or the job ends, from the moment when its state has
travelled, and costs a pause. `recyclec simulate` and the coordinator (`reconfiguration`) both decide by what
is here.
"""

from typing import NamedTuple

from recycle_runtime.plan.recut import size_text


class Outlook(NamedTuple):
    """A running job, and how long it will stay as it is."""

    step: float
    """Seconds, as it is now; 0 as long as that is not known."""
    seconds_to_change: float
    """Until its workers change, on average."""
    steps_left: int

    @property
    def expected(self) -> float:
        """Seconds until the next change of the job's workers or its end."""
        if not self.step:
            return self.seconds_to_change
        return min(self.seconds_to_change, self.steps_left * self.step)


class JobChange(NamedTuple):
    """Something to change, and what speaks for and against it."""

    what: str
    """Such as `layout 3x2,3x2`."""
    made: str
    """The word for it when it is made, such as `re-cut`."""
    outlook: Outlook
    saving: float
    """Share of a step."""
    pause: float
    """Seconds without training."""
    moving: float = 0.0
    """Seconds before that in which state travels and training goes on as it is."""
    size: int = 0
    """Bytes that travel then."""
    least: float = 0.0
    """Share of a step that it must save."""
    is_asked_for: bool = False
    """True if it is made wherever it saves anything, whatever it costs."""

    @property
    def gain(self) -> float:
        """Seconds that are saved."""
        return self.saving * max(0.0, self.outlook.expected - self.moving) - self.pause

    @property
    def pays(self) -> bool:
        return self.saving > 0 and self.saving >= self.least and (self.is_asked_for or self.gain > 0)

    def beyond(self, other: "JobChange | None") -> "JobChange":
        """The same in place of another one: what it saves of the step that the other leaves."""
        if other is None:
            return self
        left = 1 - other.saving
        outlook = self.outlook._replace(step=left * self.outlook.step)
        return self._replace(outlook=outlook, saving=1 - (1 - self.saving) / left)

    def __str__(self) -> str:
        outcome = self.made if self.pays else f"not {self.made}"
        if self.saving <= 0:
            return f"{self.what} saves nothing: {outcome}"
        if self.pays and self.gain <= 0:
            outcome += ", as asked for"
        travel = f"{size_text(self.size)} travel in {self.moving:.3g} s, " if self.size else ""
        return (
            f"{self.what} saves {100 * self.saving:.1f} % of {self.outlook.step:.3g} s a step, {travel}"
            f"a pause of {self.pause:.2g} s, {self.outlook.expected:.0f} s expected: {outcome}"
        )
