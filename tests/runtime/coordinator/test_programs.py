"""Workers with another program, seed or plan file are named; what cannot be compared is not."""

from recycle_runtime.coordinator.last_generation import Setup
from recycle_runtime.coordinator.programs import Programs
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.generations import HeldState, LeftGroup
from recycle_runtime.protocol.messages.members import Member

FIRST, SECOND = Member((0, 0), 0), Member((1, 0), 0)


def left(program: str = "3.11 abc", seed: int = 0, plans: str = "p1") -> LeftGroup:
    return LeftGroup(1, HeldState(0, is_fresh=True), program, seed, plans)


def nowhere(worker: Worker) -> str:
    return ""


def mistake(programs: Programs, member: Member, said: LeftGroup) -> str:
    return programs.mistake(member, said, nowhere) or ""


def test_the_same_program_and_seed() -> None:
    programs = Programs("p1")
    assert mistake(programs, FIRST, left()) == mistake(programs, SECOND, left()) == ""


def test_another_program_names_both_workers() -> None:
    """They trained together, and what came out was neither's."""
    programs = Programs("p1")
    assert mistake(programs, FIRST, left()) == ""
    said = mistake(programs, SECOND, left("3.11 abd"))
    assert said.startswith("worker 1:0 has another program than worker 0:0 (source abd and abc)")
    assert mistake(programs, FIRST, left()) == ""


def test_another_seed() -> None:
    programs = Programs("p1")
    mistake(programs, FIRST, left())
    assert "has the seed 1, and worker 0:0 has 0" in mistake(programs, SECOND, left(seed=1))


def test_other_plans_name_the_node() -> None:
    """They waited for each other, and nobody said why."""
    programs = Programs("p1")
    said = programs.mistake(FIRST, left(plans="p2"), lambda _: "there")
    assert said == (
        "worker 0:0 on there has another plan file than the coordinator (plans p2 and p1): every node needs "
        "the same file"
    )
    assert programs.first is None, "the others are not compared with it"
    assert programs.mistake(SECOND, left(), lambda _: "here") is None
    assert programs.first == Setup("worker 1:0 on here", "3.11 abc", 0, "p1")


def test_what_cannot_be_compared() -> None:
    """A source that is not there to be read, and one that another version of Python reads."""
    programs = Programs("p1")
    mistake(programs, FIRST, left())
    assert mistake(programs, SECOND, left("3.11")) == ""
    assert mistake(programs, SECOND, left("3.12 abd")) == ""
    assert mistake(programs, SECOND, left(plans="")) == ""


def test_a_restarted_coordinator_compares_with_what_its_workers_have() -> None:
    """Not with a newcomer that happens to speak first."""
    programs = Programs("p1", Setup("worker 0:0 on here", "3.11 abc", 0, "p1"))
    said = mistake(programs, SECOND, left("3.11 abd"))
    assert said.startswith("worker 1:0 has another program than worker 0:0 on here")
