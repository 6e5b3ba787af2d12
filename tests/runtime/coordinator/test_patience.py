"""Time that the coordinator waits for workers that are alive."""

from recycle_runtime.coordinator.patience import AttentiveClock, Patience, Standstill


def test_time_in_which_it_was_stopped_does_not_count() -> None:
    real = [100.0]
    clock = AttentiveClock(lambda: real[0])
    for _ in range(10):
        real[0] += 0.5
        clock.turn()
    assert (clock.now(), clock.stopped) == (105.0, 0.0)
    real[0] += 3600.0
    clock.turn()
    assert (clock.now(), clock.stopped) == (105.0, 3600.0)
    real[0] += 1.0
    clock.turn()
    assert clock.now() == 106.0


def test_a_first_step_may_take_longer() -> None:
    standstill = Standstill(Patience.beside(instruction=60.0, first_step=1000.0), 0.0)
    assert standstill.is_over(130.0, 0.0, lambda: True)
    assert not standstill.is_over(1050.0, 0.0, lambda: False)
    assert standstill.is_over(1070.0, 0.0, lambda: False)
    standstill.step(1000.0, seconds=100.0)
    assert not standstill.is_over(2990.0, 0.0, lambda: True)
    assert standstill.is_over(3010.0, 0.0, lambda: False)
    assert not standstill.is_over(3010.0, 2000.0, lambda: False)
    standstill.wait(3000.0)
    assert not standstill.is_over(3010.0, 0.0, lambda: False)


def test_it_waits_longer_than_agents_do() -> None:
    patience = Patience.beside(instruction=300.0, first_step=5000.0)
    assert patience.standstill > 300.0 and patience.leaving >= 300.0
    assert patience.last_leaving > patience.first_step > 5000.0
