"""State of the user's script in a checkpoint: what it keeps, and the last row that it may ask for.

No torch.
"""

from pathlib import Path
from typing import NamedTuple

from recycle_runtime.checkpoint.manifest import read_sealed, write_sealed
from recycle_runtime.protocol.codec import ProtocolError, decode, encode
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled
from recycle_runtime.state.names import CheckpointError

_FILE = "script.json"
_KIND = "state of a script"


class ScriptState(NamedTuple):
    """Before the first step that the checkpoint does not have."""

    kept: bytes
    row: StepRow
    """Of the last step that it has."""
    settled: StepSettled | None = None
    """Outcome of that step, where it was known."""
    loops: tuple[tuple[int, int], ...] = ()
    """The loops of the script that had begun, and their first steps."""

    def write(self, folder: Path) -> None:
        """Beside the shards, before the manifest."""
        write_sealed(folder / _FILE, _KIND, encode(self._asdict()))

    @staticmethod
    def read(folder: Path) -> "ScriptState | None":
        """None where there was no script; CheckpointError where it is damaged."""
        path = folder / _FILE
        if not path.exists():
            return None
        found, _ = read_sealed(path, _KIND)
        try:
            settled = found.get("settled")
            return ScriptState(
                decode(bytes, found.get("kept"), "kept"),
                decode(StepRow, found.get("row"), "row"),
                None if settled is None else decode(StepSettled, settled, "settled"),
                decode(tuple[tuple[int, int], ...], found.get("loops", []), "loops"),
            )
        except ProtocolError as error:
            raise CheckpointError(f"{path}: damaged: {error}") from None
