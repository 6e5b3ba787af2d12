"""A stop between two steps that moves ahead as long as some have passed it."""

from recycle_runtime.coordinator.pending import BoundaryStop
from recycle_runtime.protocol.messages.generations import Hold, Holding


def test_a_stop_that_some_have_passed() -> None:
    stop = BoundaryStop()
    assert stop.order(20) == Hold(20, 0), "nobody has to stop before the end"
    assert stop.want("a move", 5) and not stop.want("a joiner", 9) and not stop.want("a move", 9)
    assert (stop.causes, stop.order(20)) == (["a move", "a joiner"], Hold(5, 1))
    assert not stop.is_passed(Holding(1, 4), 20)
    assert stop.is_passed(Holding(1, 5), 20) and stop.order(20) == Hold(7, 2)
    assert not stop.is_passed(Holding(1, 9), 20), "that was about the order before"
    assert stop.is_passed(Holding(2, 8), 20) and stop.order(20) == Hold(12, 3), "further each time"
    assert stop.is_passed(Holding(3, 19), 20) and stop.order(20) == Hold(20, 4), "never beyond the end"
    assert not stop.is_passed(Holding(4, 20), 20), "it has made all steps"
    stop.end()
    assert (stop.causes, stop.order(20)) == ([], Hold(20, 4))
    assert stop.want("another", 6) and stop.is_passed(Holding(5, 6), 20) and stop.order(20) == Hold(8, 6)
