"""The simulated disk does to the log what a real one may do, no less: it forgets, tears, reorders, flips and fails."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream import errors
from icestream.runtime.simulated_disk import SECTOR, Crash, SimulatedDisk
from tests.support.hypothesis_effort import HALF

SEEDS = range(60)
OLD, NEW = b"o" * (8 * SECTOR), b"n" * (8 * SECTOR)


def disk_with(content: bytes = OLD, *, seed: int = 1, capacity: int = 2**40) -> SimulatedDisk:
    disk = SimulatedDisk(seed, capacity)
    disk.replace("a", content)
    return disk


def sectors(data: bytes) -> list[bytes]:
    return [data[at : at + SECTOR] for at in range(0, len(data), SECTOR)]


def after_power_loss(action: Callable[[SimulatedDisk], object]) -> list[bytes]:
    """The content of file `a` after a power loss, for each seed."""
    contents = []
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        action(disk)
        disk.power_loss()
        contents.append(disk.content("a"))
    return contents


# --- forgetting, tearing, reordering ----------------------------------------------------------------------------------


def test_synced_bytes_are_never_lost() -> None:
    def write_and_sync(disk: SimulatedDisk) -> None:
        file = disk.open("a")
        file.write_at(0, NEW)
        file.sync()

    assert set(after_power_loss(write_and_sync)) == {NEW}


def test_unsynced_bytes_are_lost_kept_or_torn_by_sectors() -> None:
    contents = after_power_loss(lambda disk: disk.open("a").write_at(0, NEW))
    assert {OLD, NEW} <= set(contents)
    torn = [content for content in contents if content not in (OLD, NEW)]
    assert torn
    for content in torn:
        assert set(sectors(content)) == {b"o" * SECTOR, b"n" * SECTOR}


def test_sectors_land_in_any_order() -> None:
    """A later part is there while an earlier one is not, and the other way round."""
    contents = after_power_loss(lambda disk: disk.open("a").write_at(0, NEW))
    landed = [[sector[:1] == b"n" for sector in sectors(content)] for content in contents]
    assert any(not sectors_landed[0] and sectors_landed[-1] for sectors_landed in landed)
    assert any(sectors_landed[0] and not sectors_landed[-1] for sectors_landed in landed)


def test_a_later_write_lands_without_an_earlier_one() -> None:
    def two_writes(disk: SimulatedDisk) -> None:
        file = disk.open("a")
        file.write_at(0, b"1" * SECTOR)
        file.write_at(SECTOR, b"2" * SECTOR)

    outcomes = {content[: 2 * SECTOR : SECTOR] for content in after_power_loss(two_writes)}
    assert outcomes == {b"oo", b"1o", b"o2", b"12"}


def test_a_sector_that_is_rewritten_keeps_the_bytes_around() -> None:
    """The assumption of hazard 42: only written bytes change."""
    outcomes = set(after_power_loss(lambda disk: disk.open("a").write_at(100, b"new")))
    assert outcomes == {OLD, OLD[:100] + b"new" + OLD[103:]}


def test_a_sync_covers_its_own_file_only() -> None:
    lost = 0
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        disk.replace("b", OLD)
        disk.open("b").write_at(0, NEW)
        disk.open("a").sync()
        disk.power_loss()
        lost += disk.content("b") != NEW
    assert lost


def test_a_truncation_is_lost_or_kept() -> None:
    contents = after_power_loss(lambda disk: disk.open("a").truncate(100))
    assert {len(content) for content in contents} == {100, len(OLD)}

    def truncate_and_sync(disk: SimulatedDisk) -> None:
        file = disk.open("a")
        file.truncate(100)
        file.sync()

    assert set(after_power_loss(truncate_and_sync)) == {OLD[:100]}


def test_a_killed_process_loses_no_written_bytes() -> None:
    disk = disk_with()
    disk.open("a").write_at(0, NEW)
    disk.create("b")
    disk.kill()
    assert (disk.content("a"), disk.names()) == (NEW, ["a", "b"])
    disk.power_loss()
    assert disk.content("a") in (OLD, NEW) or set(sectors(disk.content("a"))) == {b"o" * SECTOR, b"n" * SECTOR}


def test_a_second_power_loss_changes_nothing_more() -> None:
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        disk.open("a").write_at(0, NEW)
        disk.create("b")
        disk.power_loss()
        before = disk.names(), disk.content("a")
        disk.power_loss()
        assert (disk.names(), disk.content("a")) == before


# --- names ------------------------------------------------------------------------------------------------------------


def change_names(disk: SimulatedDisk) -> list[list[str]]:
    """Some changes, and the names after each of them."""
    states = [disk.names()]
    changes: list[Callable[[], Any]] = [
        lambda: disk.create("b"),
        lambda: disk.create("c"),
        lambda: disk.rename("b", "d"),
        lambda: disk.remove("a"),
        lambda: disk.rename("c", "a"),
    ]
    for change in changes:
        change()
        states.append(disk.names())
    return states


def test_changes_of_names_land_as_a_prefix() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        states = change_names(disk)
        disk.power_loss()
        assert disk.names() in states
        outcomes.add(tuple(disk.names()))
    assert outcomes == {tuple(state) for state in states}


def test_changes_of_names_are_kept_after_the_directory_is_synced() -> None:
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        states = change_names(disk)
        disk.sync()
        disk.power_loss()
        assert disk.names() == states[-1]


def test_a_rename_happens_wholly_or_not_at_all() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        disk.replace("b", NEW)
        disk.rename("a", "b")
        disk.power_loss()
        outcomes.add(tuple((name, disk.content(name)[:1]) for name in disk.names()))
    assert outcomes == {(("a", b"o"), ("b", b"n")), (("b", b"o"),)}


def test_a_synced_file_is_lost_with_a_name_that_was_not() -> None:
    """Why the log syncs the directory after it made a file."""
    outcomes = set()
    for seed in SEEDS:
        disk = SimulatedDisk(seed)
        file = disk.create("b")
        file.write_at(0, NEW)
        file.sync()
        disk.power_loss()
        outcomes.add(tuple(disk.names()))
    assert outcomes == {(), ("b",)}


# --- flips and replacements -------------------------------------------------------------------------------------------


@given(st.integers(0, 8 * len(OLD) - 1), st.booleans())
def test_a_flip_changes_one_bit_for_good(bit: int, power: bool) -> None:
    disk = disk_with()
    disk.flip("a", bit)
    if power:
        disk.power_loss()
    content = int.from_bytes(disk.content("a"), "little")
    assert content ^ int.from_bytes(OLD, "little") == 1 << bit


def test_a_replaced_file_is_on_the_platter() -> None:
    for seed in SEEDS:
        disk = SimulatedDisk(seed)
        disk.replace("b", b"x")
        disk.replace("b", b"yz")
        disk.power_loss()
        assert disk.content("b") == b"yz"


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3])
def test_the_operation_that_was_named_fails_once(after: int) -> None:
    disk = disk_with()
    file = disk.open("a")
    disk.fail("write", errno.ENOSPC, after)
    for number in range(6):
        file.sync()
        if number == after:
            with pytest.raises(OSError, match="No space") as caught:
                file.write_at(0, b"x")
            assert caught.value.errno == errno.ENOSPC
        else:
            file.write_at(0, b"x")


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("create", lambda disk: disk.create("b")),
        ("rename", lambda disk: disk.rename("a", "b")),
        ("remove", lambda disk: disk.remove("a")),
        ("truncate", lambda disk: disk.open("a").truncate(0)),
        ("allocate", lambda disk: disk.open("a").allocate(10**6)),
    ],
)
def test_an_operation_that_failed_had_no_effect(operation: str, act: Callable[[SimulatedDisk], Any]) -> None:
    disk = disk_with()
    disk.fail(operation, errno.EIO)
    with pytest.raises(OSError, match="error"):
        act(disk)
    assert (disk.names(), disk.content("a")) == (["a"], OLD)


def test_a_failed_write_writes_a_part_of_its_bytes() -> None:
    lengths = set()
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        disk.fail("write", errno.EIO)
        with pytest.raises(OSError, match="error"):
            disk.open("a").write_at(0, NEW)
        content = disk.content("a")
        written = len(content) - len(content.lstrip(b"n"))
        assert content == NEW[:written] + OLD[written:]
        lengths.add(written)
    assert len(lengths) > 10


def test_a_failed_directory_sync_promises_nothing() -> None:
    names = set()
    for seed in SEEDS:
        disk = disk_with(seed=seed)
        disk.create("b")
        disk.fail("sync_directory", errno.EIO)
        with pytest.raises(OSError, match="error"):
            disk.sync()
        disk.power_loss()
        names.add(tuple(disk.names()))
    assert names == {("a",), ("a", "b")}


def fail_to_sync(disk: SimulatedDisk) -> None:
    file = disk.open("a")
    file.write_at(0, NEW)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="error"):
        file.sync()


def test_hazard_06_after_a_failed_sync_the_cache_differs_from_the_platter() -> None:
    disk = disk_with()
    fail_to_sync(disk)
    disk.kill()
    assert disk.content("a") == NEW
    assert set(after_power_loss(fail_to_sync)) == {OLD}


def test_hazard_06_a_later_sync_succeeds_without_reaching_the_platter() -> None:
    """Linux marked the pages clean: the next fsync has nothing to do and says so (fsyncgate)."""

    def fail_then_sync(disk: SimulatedDisk) -> None:
        fail_to_sync(disk)
        disk.open("a").sync()

    assert set(after_power_loss(fail_then_sync)) == {OLD}


def test_hazard_06_only_a_new_write_reaches_the_platter() -> None:
    def fail_then_write_again(disk: SimulatedDisk) -> None:
        fail_to_sync(disk)
        file = disk.open("a")
        file.write_at(0, NEW[: 2 * SECTOR])
        file.sync()

    assert set(after_power_loss(fail_then_write_again)) == {NEW[: 2 * SECTOR] + OLD[2 * SECTOR :]}


def test_faults_end_with_the_process() -> None:
    disk = disk_with()
    disk.fail("write", errno.EIO)
    disk.crash_after(0)
    disk.kill()
    disk.open("a").write_at(0, NEW)
    assert disk.content("a") == NEW


# --- space ------------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_accepts_again_when_space_returns() -> None:
    disk = disk_with(bytes(1_000), capacity=1_500)
    file = disk.create("b")
    assert disk.free_bytes() == 500
    file.write_at(0, bytes(500))
    for act in (lambda: file.write_at(500, b"x"), lambda: file.allocate(501)):
        with pytest.raises(OSError, match="No space"):
            act()
    file.write_at(0, b"y" * 500)  # no new space is needed
    disk.remove("a")
    file.write_at(500, b"x")
    file.allocate(1_500)
    assert disk.free_bytes() == 0


def test_a_write_that_does_not_fit_uses_no_more_than_the_free_space() -> None:
    for seed in SEEDS:
        disk = disk_with(bytes(1_000), seed=seed, capacity=1_500)
        with pytest.raises(OSError, match="No space"):
            disk.create("b").write_at(0, bytes(5_000))
        assert disk.used_bytes() <= 1_500


# --- the end of a process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passing", [0, 1, 2, 3])
def test_a_crash_happens_after_the_given_number_of_operations(passing: int) -> None:
    disk = disk_with()
    file = disk.open("a")
    acts: list[Callable[[], Any]] = [
        lambda: file.write_at(0, NEW),
        lambda: disk.create("b"),
        lambda: disk.rename("b", "c"),
        lambda: disk.remove("c"),
    ]
    disk.crash_after(passing)
    for act in acts[:passing]:
        act()
    before = disk.names(), disk.content("a")
    for _ in range(2):  # once dead, dead
        with pytest.raises(Crash):
            acts[passing]()
    assert (disk.names(), disk.content("a")) == before


def test_no_handler_for_exceptions_stops_a_crash() -> None:
    assert not issubclass(Crash, Exception)


@pytest.mark.parametrize("end", ["kill", "power_loss"])
def test_the_handles_of_a_process_end_with_it(end: str) -> None:
    disk = disk_with()
    file, lock = disk.open("a"), disk.lock("LOCK")
    with pytest.raises(errors.LogLocked):
        disk.lock("LOCK")
    getattr(disk, end)()
    calls: list[Callable[[], Any]] = [
        lambda: file.read_at(0, 1), lambda: file.write_at(0, b"x"), file.sync,
        lambda: file.truncate(0), lambda: file.allocate(10**6),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Crash):
            call()
    new_lock = disk.lock("LOCK")
    lock.close()  # of the dead process: it must not release the new one's
    with pytest.raises(errors.LogLocked):
        disk.lock("LOCK")
    new_lock.close()
    assert disk.open("a").read_at(0, 1) == b"o"


# --- one seed, one run ------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(0, 2_000), st.integers(1, 3_000)),
        st.tuples(st.just("sync"), st.integers(0, 2)),
        st.tuples(st.just("truncate"), st.integers(0, 2), st.integers(0, 3_000)),
        st.tuples(st.just("fail"), st.sampled_from(["write", "sync"]), st.integers(0, 3)),
        st.tuples(st.just("rename"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("sync_directory")),
        st.tuples(st.just("power_loss")),
        st.tuples(st.just("kill")),
    ),
    max_size=25,
)


def play(seed: int, steps: list[tuple[Any, ...]]) -> tuple[SimulatedDisk, list[object]]:
    disk = SimulatedDisk(seed)
    for number in range(3):
        disk.replace(str(number), OLD)
    seen: list[object] = []
    for count, (what, *arguments) in enumerate(steps):
        try:
            play_one(disk, count, what, arguments)
        except (OSError, KeyError) as error:
            seen.append(type(error))
        seen.append([(name, disk.content(name)) for name in disk.names()])
    return disk, seen


def play_one(disk: SimulatedDisk, count: int, what: str, arguments: list[Any]) -> None:
    match what, arguments:
        case "write", [number, position, size]:
            disk.open(str(number)).write_at(position, bytes([count]) * size)
        case "sync", [number]:
            disk.open(str(number)).sync()
        case "truncate", [number, size]:
            disk.open(str(number)).truncate(size)
        case "fail", [operation, after]:
            disk.fail(operation, errno.EIO, after)
        case "rename", [old, new] if old != new:
            disk.rename(str(old), str(new))
        case "sync_directory", []:
            disk.sync()
        case "power_loss", []:
            disk.power_loss()
        case "kill", []:
            disk.kill()


@HALF
@given(st.integers(0, 99), STEPS)
def test_the_same_seed_is_the_same_run(seed: int, steps: list[tuple[Any, ...]]) -> None:
    first, seen = play(seed, steps)
    two, seen_again = play(seed, steps)
    assert seen == seen_again
    assert first.operations == two.operations


def test_another_seed_is_another_run() -> None:
    steps = [("write", 0, 0, 3_000), ("power_loss",)] * 5
    assert len({str(play(seed, steps)[1]) for seed in range(5)}) > 1


def test_every_operation_is_noted_in_order() -> None:
    disk = disk_with()
    file = disk.create("b")
    file.allocate(10)
    file.write_at(0, b"x")
    file.sync()
    file.truncate(3)
    disk.rename("b", "c")
    disk.remove("a")
    disk.sync()
    assert disk.operations == [
        ("create", "b"), ("allocate", "b"), ("write", "b"), ("sync", "b"), ("truncate", "b"), ("rename", "b c"),
        ("remove", "a"), ("sync_directory", ""),
    ]  # fmt: skip
    assert disk.describe("a") == "sim:a"
    assert disk.open("c").fileno() == -1
