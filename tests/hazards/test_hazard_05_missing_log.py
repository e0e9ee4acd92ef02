"""Hazard 5, the whole log deleted, or its disk not mounted: the metadata store knows that there was one.

refused       a start without the log directory, as often as it is tried; the directory brought back starts
repair        --accept-loss makes the next start go on above every offset that may have been given out
no record     of an older version, or of a start that died before it wrote one: written by the next start
other log     of another node, or one that was given up: refused with the ids of both, and nothing is changed
no log        but topics of this node: refused, whether there is a record or not
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from icestream import connect, errors
from icestream.broker.records import NODE_LOGS
from icestream.cli import main as command_line
from icestream.processes.broker_process import BrokerNode
from icestream.wal.log_file import checkpoint_name
from tests.support.node_settings import node_settings

MESSAGES = 20


async def publish(data_dir: Path, count: int) -> list[int]:
    """One life of a node; the offsets that were acked."""
    node = await BrokerNode.start(node_settings(data_dir))
    try:
        address = f"127.0.0.1:{node.native.port}"
        async with connect(address) as client, client.producer("/default/orders") as producer:
            receipts = [await producer.send(f"{number}".encode()) for number in range(count)]
            return [receipt.offset for receipt in receipts]
    finally:
        await node.stop()


async def log_records(data_dir: Path, *, remove: bool = False) -> list[str]:
    """The records of logs in the metadata store of a node that runs for this only."""
    node = await BrokerNode.start(node_settings(data_dir))
    try:
        keys = [key for key, _ in await node.store.list_all(NODE_LOGS)]
        if remove:
            await node.store.delete_prefix(NODE_LOGS)
        return keys
    finally:
        await node.stop()


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["icestream", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        command_line.main()
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_hazard_05_a_start_without_the_log_directory_is_refused(tmp_path: Path) -> None:
    data, aside = tmp_path / "data", tmp_path / "aside"
    assert asyncio.run(publish(data, MESSAGES)) == list(range(MESSAGES))
    (data / "wal").rename(aside)
    for _ in range(2):
        with pytest.raises(errors.LogDamaged, match=r"there is no log in .*wal, but .* has had one") as raised:
            asyncio.run(publish(data, 1))
        assert f"icestream wal repair {data / 'wal'} --accept-loss" in raised.value.hint
    shutil.rmtree(data / "wal")
    aside.rename(data / "wal")
    assert asyncio.run(publish(data, 1)) == [MESSAGES]


def test_hazard_05_a_repair_of_a_lost_log_reuses_no_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    asyncio.run(publish(data, MESSAGES))
    shutil.rmtree(data / "wal")
    with pytest.raises(errors.LogDamaged):
        asyncio.run(publish(data, 1))
    assert command(monkeypatch, "wal", "repair", data / "wal") == 0
    with pytest.raises(errors.LogDamaged):  # nothing was accepted yet
        asyncio.run(publish(data, 1))
    assert command(monkeypatch, "wal", "repair", data / "wal", "--accept-loss") == 0
    first, second = asyncio.run(publish(data, 2))
    assert first >= 2**40
    assert second == first + 1
    assert asyncio.run(publish(data, 1)) == [second + 1]


def test_hazard_05_a_log_without_a_record_gets_one_at_the_next_start(tmp_path: Path) -> None:
    """Of an older version, or of a start that died between the log and the record."""
    data = tmp_path / "data"
    asyncio.run(publish(data, MESSAGES))
    assert len(asyncio.run(log_records(data, remove=True))) == 1
    assert asyncio.run(publish(data, 1)) == [MESSAGES]
    assert len(asyncio.run(log_records(data))) == 1
    shutil.rmtree(data / "wal")
    with pytest.raises(errors.LogDamaged):
        asyncio.run(publish(data, 1))


def test_hazard_05_a_start_killed_before_the_record_is_written_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"

    async def fail(*_: object) -> None:
        raise errors.NotReady("the store is gone")

    with monkeypatch.context() as patched:
        patched.setattr("icestream.processes.broker_process.record_log", fail)
        with pytest.raises(errors.NotReady):
            asyncio.run(publish(data, 1))
    assert asyncio.run(publish(data, 1)) == [0]
    assert len(asyncio.run(log_records(data))) == 1


def test_hazard_05_a_repair_of_a_lost_log_ignores_an_unreadable_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint without records and readable files is no evidence of more than an empty directory."""
    data = tmp_path / "data"
    asyncio.run(publish(data, MESSAGES))
    shutil.rmtree(data / "wal")
    (data / "wal").mkdir()
    (data / "wal" / checkpoint_name(0, 1)).write_bytes(bytes(100))
    with pytest.raises(errors.LogDamaged):
        asyncio.run(publish(data, 1))
    assert command(monkeypatch, "wal", "repair", data / "wal", "--accept-loss") == 0
    assert asyncio.run(publish(data, 1))[0] >= 2**40


def test_hazard_05_the_log_of_another_node_is_refused(tmp_path: Path) -> None:
    """Two disks were mounted in each other's place."""
    data, other, aside = tmp_path / "data", tmp_path / "other", tmp_path / "aside"
    asyncio.run(publish(data, MESSAGES))
    asyncio.run(publish(other, 1))
    (data / "wal").rename(aside)
    shutil.copytree(other / "wal", data / "wal")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (data / "wal").iterdir())
    for _ in range(2):
        with pytest.raises(
            errors.ForeignLog, match=r"the log in .*wal is not the log of this node: it is log"
        ) as raised:
            asyncio.run(publish(data, 1))
        assert "mount the disk of this node's own log there" in raised.value.hint
    assert sorted((path.name, path.stat().st_mtime_ns) for path in (data / "wal").iterdir()) == before
    shutil.rmtree(data / "wal")
    aside.rename(data / "wal")
    assert asyncio.run(publish(data, 1)) == [MESSAGES]


def test_hazard_05_an_abandoned_log_cannot_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets of the abandoned log and of the log that replaced it would contradict each other."""
    data, aside = tmp_path / "data", tmp_path / "aside"
    asyncio.run(publish(data, MESSAGES))
    (data / "wal").rename(aside)
    with pytest.raises(errors.LogDamaged):
        asyncio.run(publish(data, 1))
    assert command(monkeypatch, "wal", "repair", data / "wal", "--accept-loss") == 0
    (first,) = asyncio.run(publish(data, 1))
    (data / "wal").rename(tmp_path / "new")
    aside.rename(data / "wal")
    with pytest.raises(errors.ForeignLog, match="by the metadata store this node has log"):
        asyncio.run(publish(data, 1))
    shutil.rmtree(data / "wal")
    (tmp_path / "new").rename(data / "wal")
    assert asyncio.run(publish(data, 1)) == [first + 1]


def test_hazard_05_a_start_after_a_repair_may_be_killed_before_the_log_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    asyncio.run(publish(data, MESSAGES))
    shutil.rmtree(data / "wal")
    with pytest.raises(errors.LogDamaged):
        asyncio.run(publish(data, 1))
    assert command(monkeypatch, "wal", "repair", data / "wal", "--accept-loss") == 0

    async def fail(*_: object) -> None:
        raise errors.NotReady("the store is gone")

    with monkeypatch.context() as patched:
        patched.setattr("icestream.processes.broker_process.record_log", fail)
        with pytest.raises(errors.NotReady):
            asyncio.run(publish(data, 1))
    assert asyncio.run(publish(data, 1))[0] >= 2**40


def test_hazard_05_topics_without_a_log_are_refused_without_a_record_too(tmp_path: Path) -> None:
    """Of an older version, which wrote none."""
    data = tmp_path / "data"
    asyncio.run(publish(data, MESSAGES))
    asyncio.run(log_records(data, remove=True))
    shutil.rmtree(data / "wal")
    with pytest.raises(errors.LogDamaged, match=r"there is no log in .*wal"):
        asyncio.run(publish(data, 1))
