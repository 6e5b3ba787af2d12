"""The last save of a job: all steps are made, and workers write their parameters. Standard library only."""

from recycle_runtime.coordinator.events import LastSave
from recycle_runtime.coordinator.journal import Field
from recycle_runtime.coordinator.participant import Memory, Participant
from recycle_runtime.protocol.messages.generations import Done
from recycle_runtime.protocol.messages.members import Member


class LastSaving(Participant):
    """Keeps count of the processes that have written what they should."""

    memory = (
        Memory(
            "the last save, and who has done its part",
            said=(Done,),
            journal={
                "last_save": Field(LastSave),
                "done": Field(Member, needs=("error",)),
                "error": Field(str | None),
            },
        ),
    )
