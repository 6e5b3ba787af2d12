"""Workers that hold a state with which the job can go on."""

from recycle_runtime.coordinator.membership import Entry


def test_who_waits_for_a_copy_holds_nothing() -> None:
    """The only worker of a stage with its state was given up, since one that waited for it was counted."""
    entry = Entry()
    entry.is_active = True
    assert entry.has_state
    entry.awaits_copy = True
    assert not entry.has_state
    entry.is_active, entry.is_leaving = False, True
    assert not entry.has_state
