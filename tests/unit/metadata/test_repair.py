"""A damaged metadata log of a single node: reported by doctor, and repaired from its intact records (item 11)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.cli.doctor import check_metadata_log
from icestream.cli.doctor_rules import CheckState
from icestream.metadata.open import open_metadata
from icestream.metadata.repair import IDS_SKIPPED, examine, repair
from icestream.metadata.watermark import FileWatermark, mark_path, read_mark
from icestream.runtime.clock import SystemClock
from icestream.wal.format import RECORDS_START

KEYS = 20


async def life(path: Path, keys: range, *, snapshot: bool = False) -> None:
    store = await open_metadata(path)
    await store.ready()
    for number in keys:
        await store.put(f"/{number:02}", b"value" * 20)
    await store.allocate_id("topic")
    if snapshot:
        await store.snapshots.take_now()
    await store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    asyncio.run(life(tmp_path / "raft", range(KEYS // 2)))
    asyncio.run(life(tmp_path / "raft", range(KEYS // 2, KEYS)))
    return tmp_path / "raft"


async def contents(path: Path) -> tuple[list[str], int]:
    store = await open_metadata(path)
    await store.ready()
    keys = [key for key, _ in await store.list_all("/") if not key.startswith("/counters")]
    number = await store.allocate_id("topic")
    await store.put("/after", b"")
    await store.close()
    return keys, number


def newest(path: Path) -> Path:
    return max(path.glob("log-*.wal"))


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 0xFF
    file.write_bytes(data)


def test_a_log_without_damage_is_reported_as_healthy(path: Path) -> None:
    health = examine(path)
    assert health.damage is None
    assert (health.last_lsn, health.is_member) == (health.synced_lsn, False)
    assert [finding.state for finding in check_metadata_log(path)] == [CheckState.OK]


def test_a_missing_newest_file_is_repaired(path: Path) -> None:
    newest(path).unlink()
    with pytest.raises(errors.LogOutdated) as raised:
        asyncio.run(contents(path))
    assert "icestream metadata repair" in raised.value.hint
    (finding,) = check_metadata_log(path)
    assert (finding.state, "metadata repair" in finding.fix) == (CheckState.PROBLEM, True)
    damaged = repair(path, SystemClock())
    assert damaged.name == "raft.damaged-1"
    assert [finding.state for finding in check_metadata_log(path)] == [CheckState.OK]
    keys, number = asyncio.run(contents(path))
    assert keys == [f"/{number:02}" for number in range(KEYS // 2)]
    assert number > IDS_SKIPPED, "no id is given twice"
    assert "/after" in asyncio.run(contents(path))[0]


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_record_in_the_middle_is_damaged(path: Path, with_snapshot: bool) -> None:
    if with_snapshot:
        asyncio.run(life(path, range(KEYS, KEYS + 3), snapshot=True))
        asyncio.run(life(path, range(KEYS + 3, KEYS + 9)))
    file = newest(path)
    data = file.read_bytes().rstrip(b"\0")
    flip(file, RECORDS_START + (len(data) - RECORDS_START) // 2)
    assert isinstance(examine(path).damage, errors.LogDamaged)
    repair(path, SystemClock())
    keys, _ = asyncio.run(contents(path))
    assert keys == [f"/{number:02}" for number in range(len(keys))], "a beginning of all that was written"
    assert (KEYS + 3 if with_snapshot else KEYS // 2) <= len(keys) < KEYS + 9


def test_the_remaining_entries_are_counted_before_a_repair(path: Path) -> None:
    file = newest(path)
    data = file.read_bytes().rstrip(b"\0")
    flip(file, RECORDS_START + (len(data) - RECORDS_START) // 2)
    health = examine(path)
    assert health.saved is not None
    assert health.last_lsn < health.synced_lsn
    repair(path, SystemClock())
    keys, _ = asyncio.run(contents(path))
    assert health.saved.keys == len([*keys, "/counters/topic"])


def test_a_log_without_a_connecting_snapshot_is_not_repaired_by_forgetting_everything(path: Path) -> None:
    """Ids would begin at 1 again, and the message log has messages of topics with these ids."""
    for first in range(KEYS, KEYS + 9, 3):  # until the log no longer reaches back to its first entry
        asyncio.run(life(path, range(first, first + 3), snapshot=True))
    for snapshot in path.glob("snapshot-*"):
        flip(snapshot, snapshot.stat().st_size // 2)
    health = examine(path)
    assert (health.damage is not None, health.saved) == (True, None)
    (finding,) = check_metadata_log(path)
    assert "backup" in finding.fix
    with pytest.raises(errors.LogDamaged, match=r"nothing of the metadata log .* can be saved"):
        repair(path, SystemClock())
    assert [file.name for file in path.parent.iterdir() if "raft." in file.name] == ["raft.mark"]


def test_a_missing_directory_is_a_problem_and_an_empty_one_is_not(path: Path, tmp_path: Path) -> None:
    assert list(check_metadata_log(tmp_path / "never" / "raft")) == []
    path.rename(tmp_path / "elsewhere")
    (finding,) = check_metadata_log(path)
    assert finding.state is CheckState.PROBLEM


def test_a_member_of_a_cluster_is_sent_to_its_peers(path: Path) -> None:
    mark = read_mark(path)
    assert mark is not None
    watermark = FileWatermark(mark_path(path))
    watermark.note(mark._replace(has_others=True))
    watermark.close()
    newest(path).unlink()
    (finding,) = check_metadata_log(path)
    assert "cluster rejoin" in finding.fix
    with pytest.raises(errors.InvalidInput, match="member of a cluster"):
        repair(path, SystemClock())
    assert path.is_dir()
    assert limits.METADATA_IDS_PER_COMMAND_MAX == IDS_SKIPPED


def test_a_repair_that_was_cut_off_between_its_two_names_is_finished(path: Path) -> None:
    newest(path).unlink()
    repair(path, SystemClock())
    path.rename(path.with_name("raft.repaired"))
    assert repair(path, SystemClock()) == path
    assert len(asyncio.run(contents(path))[0]) == KEYS // 2
