"""Pins: a read keeps its file, but never for longer than 30 s (hazards 15, 33)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream import limits
from icestream.runtime.clock import SimulatedClock
from icestream.wal.file_summary import FileSummary
from icestream.wal.index import FileIndex
from icestream.wal.log_file import Seal
from icestream.wal.read_pins import ReadPin, ReadPins

FILES = [FileSummary.of(Seal(number, number, number, 8192, 0, 0), 8192, FileIndex()) for number in range(1, 6)]
PIN_SECONDS = limits.PIN_SECONDS_MAX


def numbers(files: list[FileSummary]) -> list[int]:
    return [file.number for file in files]


def test_hazard_15_a_pinned_file_and_later_ones_are_kept() -> None:
    pins = ReadPins(SimulatedClock())
    assert pins.unpinned_prefix(FILES) == FILES
    pin = pins.pin(3)
    assert numbers(pins.unpinned_prefix(FILES)) == [1, 2]
    assert not pin.broken
    pins.release(pin)
    assert pins.unpinned_prefix(FILES) == FILES


def test_a_file_is_kept_until_its_last_pin_is_released() -> None:
    pins = ReadPins(SimulatedClock())
    first, second = pins.pin(1), pins.pin(1)
    pins.release(first)
    assert pins.unpinned_prefix(FILES) == []
    pins.release(first)  # twice is harmless
    assert pins.unpinned_prefix(FILES) == []
    pins.release(second)
    assert pins.unpinned_prefix(FILES) == FILES


def test_hazard_33_a_pin_is_broken_after_its_time_and_its_reader_notices() -> None:
    clock = SimulatedClock()
    pins = ReadPins(clock)
    old = pins.pin(1)
    clock.advance(PIN_SECONDS - 1)
    assert pins.unpinned_prefix(FILES) == []
    clock.advance(1)
    assert pins.unpinned_prefix(FILES) == FILES
    assert old.broken
    pins.release(old)
    assert pins.unpinned_prefix(FILES) == FILES


def test_hazard_33_a_thousand_stalled_readers_do_not_block_the_log() -> None:
    clock = SimulatedClock()
    pins = ReadPins(clock)
    stalled = [pins.pin(1 + number % 5) for number in range(1_000)]
    assert pins.unpinned_prefix(FILES) == []
    clock.advance(PIN_SECONDS)
    assert pins.unpinned_prefix(FILES) == FILES
    assert all(pin.broken for pin in stalled)


def test_hazard_32_a_step_of_the_wall_clock_breaks_no_pin() -> None:
    clock = SimulatedClock()
    pins = ReadPins(clock)
    pin = pins.pin(1)
    clock.step(365 * 24 * 3600)
    assert pins.unpinned_prefix(FILES) == []
    assert not pin.broken


def test_a_young_pin_protects_an_old_one_on_the_same_file() -> None:
    clock = SimulatedClock()
    pins = ReadPins(clock)
    old = pins.pin(1)
    clock.advance(PIN_SECONDS + 1)
    young = pins.pin(1)
    assert pins.unpinned_prefix(FILES) == []
    assert not any(pin.broken for pin in (old, young))


def test_a_broken_pin_released_late_does_not_release_a_new_one() -> None:
    """Another reader pins the number after the first pin was broken."""
    clock = SimulatedClock()
    pins = ReadPins(clock)
    old = pins.pin(1)
    clock.advance(PIN_SECONDS + 1)
    assert pins.unpinned_prefix(FILES[:1]) == FILES[:1]
    new = pins.pin(1)
    pins.release(old)
    assert pins.unpinned_prefix(FILES) == []
    assert not new.broken


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 5)),
        st.tuples(st.just("release"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(0, 20)),
        st.tuples(st.just("free"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_any_history_of_readers(steps: list[tuple[str, int]]) -> None:
    clock = SimulatedClock()
    pins = ReadPins(clock)
    held_pins: list[tuple[ReadPin, float]] = []  # and since when
    now, files = 0.0, list(FILES)
    overdue_since: dict[int, float] = {}  # since when a file is to be freed
    for what, number in steps:
        if what == "take":
            held_pins.append((pins.pin(number), now))
        elif what == "release" and held_pins:
            pins.release(held_pins.pop(number % len(held_pins))[0])
        elif what == "wait":
            clock.advance(number)
            now += number
        elif what == "free":
            overdue_since = {file.number: overdue_since.get(file.number, now) for file in files}
            overdue = {number for number, since in overdue_since.items() if now - since >= PIN_SECONDS}
            here = [(pin, since) for pin, since in held_pins if not pin.broken]
            young = {pin.number for pin, since in here if now - since < PIN_SECONDS} - overdue
            free = pins.unpinned_prefix(files)
            assert free == files[: len(free)]
            assert not young & set(numbers(free))
            assert len(free) == len(files) or files[len(free)].number in young
            assert all(pin.broken == (pin.number in numbers(free)) for pin, _ in here)
            files = files[len(free) :]
