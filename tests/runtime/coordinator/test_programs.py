"""Workers with another program or seed than the first one are named; what cannot be compared is not."""

from recycle_runtime.coordinator.programs import Programs
from recycle_runtime.protocol.messages import LeftGroup, Member, Report

FIRST, SECOND = Member((0, 0), 0), Member((1, 0), 0)


def left(program: str = "3.11 abc", seed: int = 0) -> LeftGroup:
    return LeftGroup(1, Report(0, is_fresh=True), program, seed)


def test_the_same_program_and_seed() -> None:
    programs = Programs()
    assert programs.mistake(FIRST, left()) is programs.mistake(SECOND, left()) is None


def test_another_program_names_both_workers() -> None:
    """They trained together, and what came out was neither's."""
    programs = Programs()
    assert programs.mistake(FIRST, left()) is None
    said = programs.mistake(SECOND, left("3.11 abd")) or ""
    assert said.startswith("worker 1:0 has another program than worker 0:0 (source abd and abc)")
    assert programs.mistake(FIRST, left()) is None


def test_another_seed() -> None:
    programs = Programs()
    programs.mistake(FIRST, left())
    assert "has the seed 1, and worker 0:0 has 0" in (programs.mistake(SECOND, left(seed=1)) or "")


def test_what_cannot_be_compared() -> None:
    """A source that is not there to be read, and one that another version of Python reads."""
    programs = Programs()
    programs.mistake(FIRST, left())
    assert programs.mistake(SECOND, left("3.11")) is None
    assert programs.mistake(SECOND, left("3.12 abd")) is None
