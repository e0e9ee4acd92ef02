"""The composition root: settings become a log, its report becomes sentences, and a stop is in order."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from icestream import errors
from icestream.broker.iceberg_storage import IcebergStorage
from icestream.metadata.store import MemoryStore
from icestream.model import ShardKey, SyncMode, TopicIdentity, envelope
from icestream.model.block import encode_block
from icestream.model.shard import DeclaredGap, GapState
from icestream.processes.broker_process import BrokerNode, open_configured_log, run_broker, run_node
from icestream.processes.component_options import log_options
from icestream.processes.node.presentation.greeting import greeting, recovery_lines
from icestream.runtime.clock import SystemClock
from icestream.settings import Settings
from icestream.wal.log_options import LogOptions
from icestream.wal.recovery import RecoveryReport
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.sample_logs import picture
from tests.support.small_log import A, open_small


def settings(data_dir: Path, storage: str = "memory", **wal: Any) -> Settings:
    small = {"max_file_size": 65536, "max_message_bytes": 8000, "spare_files": 0, "ballast": 0, **wal}
    tree = {
        "data_dir": str(data_dir),
        "storage": {"type": storage, "iceberg_config": {"wal": small}},
        "ports": {"native": 0, "broker_http": 0, "lake": 0, "danube": 0, "danube_admin": 0, "pipeline_metrics": 0},
        "lake": {"managed": False},
        "mqtt": {"enable": False},
    }
    return Settings.model_validate(tree)


async def node_on(log: WriteAheadLog, chosen: Settings) -> BrokerNode:
    """A node around a log that is open, as after its start."""
    store = MemoryStore()
    node = BrokerNode(chosen, store, IcebergStorage(log, store, SystemClock(), 10_000), log)
    await node.broker.start()
    return node


async def append(log: WriteAheadLog) -> None:
    log.declare_topic(TopicIdentity(1, "/default/a"))
    await log.append([log.batch(log.shard(*A), encode_block(1, {envelope.PAYLOAD: [b"x"]}))])


def test_every_log_option_comes_from_its_setting(tmp_path: Path) -> None:
    chosen = {
        "sync_mode": "periodic",
        "sync_interval_ms": 7,
        "max_file_size": 2**21,
        "max_message_bytes": 9000,
        "align_bytes": 512,
        "quota": 2**30,
        "ballast": 2**20,
        "topic_quota": 2**29,
        "in_flight_bytes": 2**20,
        "spare_files": 5,
        "inline_sync_below_us": 11,
        "checkpoint_every_bytes": 2**22,
        "retention_step_percent": 7,
        "warm_ms": 19,
        "warm_bytes": 23,
    }
    tree = settings(tmp_path, **chosen)
    options = log_options(
        tree.model_copy(update={"broker": tree.broker.model_copy(update={"tail_bytes": 17, "tail_ttl_ms": 19})})
    )
    assert options == LogOptions(
        mode=SyncMode.PERIODIC,
        sync_interval_ms=7,
        file_bytes=2**21,
        message_bytes_max=9000,
        align_bytes=512,
        quota_bytes=2**30,
        ballast_bytes=2**20,
        topic_quota_bytes=2**29,
        in_flight_bytes=2**20,
        spare_files=5,
        inline_sync_below_us=11,
        checkpoint_every_bytes=2**22,
        retention_step_percent=7,
        warm_ms=19,
        warm_bytes=23,
        tail_bytes=17,
        tail_ttl_ms=19,
    )
    default = LogOptions()
    same = [
        field.name
        for field in dataclasses.fields(options)
        if getattr(options, field.name) == getattr(default, field.name)
    ]
    assert same == [], "an option that is not set here may not be wired at all"


def test_a_log_in_memory_accepts_messages_and_writes_nothing(tmp_path: Path) -> None:
    async def use() -> None:
        log = await open_configured_log(settings(tmp_path / "data"))
        await append(log)
        assert log.shard(*A).synced == 1
        await log.close()

    asyncio.run(use())
    assert not (tmp_path / "data").exists()


def test_a_log_on_disk_is_where_the_settings_say(tmp_path: Path) -> None:
    async def use() -> None:
        log = await open_configured_log(settings(tmp_path / "data", "iceberg"))
        await append(log)
        await log.close()

    asyncio.run(use())
    assert (tmp_path / "data" / "wal" / "log-0000000000000001.wal").is_file()


# --- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (RecoveryReport(clean=True, last_lsn=7), ["clean start at record 7"]),
        (
            RecoveryReport(clean=False, records_scanned=3, checkpoint_lsn=4, last_lsn=7, rewritten_file="log-3"),
            [
                "recovered: 3 records read, checkpoint at record 4, the log ends at record 7",
                "log-3 was not sealed: written anew and synced",
            ],
        ),
        (
            RecoveryReport(last_lsn=7, tail_file="log-3", tail_bytes=12),
            ["clean start at record 7", "12 bytes of unfinished writes, which no sync had reached, cut from log-3"],
        ),
        (
            RecoveryReport(last_lsn=7, sync_failed_before=True, bad_checkpoints=["checkpoint-9"]),
            [
                "clean start at record 7",
                "a sync failed in the last run: check the disk; what was unsealed has been written anew",
                "checkpoint-9 was not readable; the older checkpoint and more of the log were used",
            ],
        ),
        (
            RecoveryReport(last_lsn=7, gaps=[DeclaredGap(ShardKey(1, 2), 5, 9, 0, "unclean stop", GapState.UNUSED)]),
            ["clean start at record 7", "declared gap: topic 1 shard 2 offsets 5 to 8 (unclean stop)"],
        ),
    ],
)
def test_recovery_reports_are_sentences(report: RecoveryReport, expected: list[str]) -> None:
    assert list(recovery_lines(report)) == expected


def test_the_greeting_has_recovery_sizes_and_examples(tmp_path: Path) -> None:
    disk = picture("stopped then killed").disk()

    async def greet() -> list[str]:
        node = await node_on(await open_small(disk), settings(tmp_path, "iceberg", sync_mode="periodic"))
        lines = list(greeting(node))
        await node.stop()
        return lines

    lines = asyncio.run(greet())
    assert lines[0] == f"Icestream: the broker is ready ({tmp_path / 'wal'}), sync mode periodic"
    assert "  recovered: 4 records read, checkpoint at record 5, the log ends at record 7" in lines
    assert any(line.startswith("  0 topics, the log uses ") for line in lines)
    assert (lines[-5], lines[-1]) == ("Try, in another terminal:", "Stop with Ctrl-C.")
    assert [line.split(" /default/hello")[0].rpartition("icestream ")[2] for line in lines[-4:-1]] == [
        "produce", "consume", "topic describe",
    ]  # fmt: skip


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_serve_and_restores_the_handlers(tmp_path: Path, number: signal.Signals) -> None:
    printed: list[str] = []

    def say(line: str) -> None:
        printed.append(line)
        if line == "Stop with Ctrl-C.":
            os.kill(os.getpid(), number)

    before = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    signal.signal(number, before)  # a loop of another test may have left its own
    asyncio.run(run_broker(settings(tmp_path, "iceberg"), say))
    assert printed[-1] == "stopped cleanly: the next start needs no recovery"
    assert signal.getsignal(number) == before


def test_a_signal_before_the_log_is_open_ends_it_right_after(tmp_path: Path) -> None:
    """The signal arrives during recovery: recovery finishes, and the log is closed cleanly."""
    printed: list[str] = []

    async def start_and_signal() -> None:
        serving = asyncio.create_task(run_broker(settings(tmp_path, "iceberg"), printed.append))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(serving, 30)

    asyncio.run(start_and_signal())
    assert printed[-1] == "stopped cleanly: the next start needs no recovery"


def test_a_log_that_cannot_be_opened_ends_serve_and_restores_the_handlers(tmp_path: Path) -> None:
    drawn = picture("killed often")
    path = drawn.write_to(tmp_path / "wal")
    (path / drawn.logs()[0]).unlink()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(errors.LogDamaged, match="begins with record 4, expected 1"):
        asyncio.run(run_broker(settings(tmp_path, "iceberg"), lambda _: None))
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_stop_closes_the_log(tmp_path: Path) -> None:
    disk = picture("killed").disk()

    async def run() -> bool:
        log = await open_small(disk)
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(run_node(await node_on(log, settings(tmp_path)), stop))
        await append(log)
        stop.set_result(None)
        await running
        return (await open_small(disk)).report.clean

    assert asyncio.run(run())


def test_a_failed_sync_ends_it_with_the_reason(tmp_path: Path) -> None:
    disk = picture("killed").disk()

    async def run() -> None:
        log = await open_small(disk)
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(run_node(await node_on(log, settings(tmp_path)), stop))
        await asyncio.sleep(0)
        disk.fail("sync", errno.EIO)
        with pytest.raises(errors.OutcomeUnknown):
            await append(log)
        await running

    with pytest.raises(errors.LogStopped, match="a sync of the log failed"):
        asyncio.run(run())
