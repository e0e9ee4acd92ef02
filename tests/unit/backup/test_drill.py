"""Drills: a backup is restored into a broker of its own and compared; the report names what is damaged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from icestream import errors
from icestream.backup.drill_report import (
    DrillKey,
    DrillReport,
    Outcome,
    SignatureState,
    decode_report,
    drill_due_in_ms,
    encode_report,
)
from icestream.backup.encryption import BackupKey
from icestream.backup.stored_drills import last_drills, open_drill_key, put_report, stored_drills
from icestream.broker.records import CursorRecord, cursor_key, decode, encode
from icestream.processes import backup_drill
from icestream.processes.backup_drill import BackupDrill
from icestream.processes.scheduled_backups import ScheduledDrills
from icestream.processes.scratch_broker import ScratchBroker
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from icestream.runtime.tasks import InlineOffload
from tests.support.backup_world import ORDERS, BackupWorld, LocalSource, backup_world
from tests.support.broker_machine import subscribe
from tests.support.fake_clock import FakeClock
from tests.support.node_settings import node_settings

HOUR = 3_600_000


async def prepare(world: BackupWorld, published: int = 10, committed: int = 6) -> None:
    await world.create_topic()
    await world.bind()
    await subscribe(world.node.broker, topic=ORDERS)
    await world.publish(published)
    if committed:
        await world.commit(committed)


def drill_of(world: BackupWorld, key: BackupKey | None = None, **more: Any) -> BackupDrill:
    scratch = world.folder / "scratch"
    return BackupDrill(
        world.stored(key), LocalSource().chunks, SystemClock(), InlineOffload(), node="n", directory=scratch, **more
    )


def file_of(world: BackupWorld, name: str) -> Path:
    return Path(world.target.location(name).removeprefix("file:"))


def folders_in(folder: Path) -> set[Path]:
    return {*folder.iterdir()}


@pytest.mark.asyncio
@pytest.mark.parametrize("options", [{}, {"kind": "reference"}, {"key": BackupKey(b"k" * 32)}])
async def test_a_drill_of_a_whole_backup_passes_and_leaves_nothing(tmp_path: Path, options: dict[str, object]) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up(**options)
        await world.publish(5)
        before = await world.node.store.list_all("/")
        key = options.get("key")
        report = await drill_of(world, key if isinstance(key, BackupKey) else None).run(root.id)
        assert (report.findings, report.outcome, report.messages) == ([], "passed", 10)
        (topic,) = report.topics
        assert (topic.topic, topic.subscriptions) == (str(ORDERS), 1)
        (shard,) = topic.shards
        assert shard.messages == 10
        assert shard.next_offset > 10
        assert shard.digest.startswith("1:10:")
        assert list((tmp_path / "scratch").iterdir()) == []
        assert await world.node.store.list_all("/") == before, "the live broker was not touched"


@pytest.mark.asyncio
async def test_a_drill_of_a_damaged_backup_fails_and_names_the_object(tmp_path: Path) -> None:
    """Each object that a restore reads, removed once, and once with a flipped bit anywhere in it. Views and the
    inventory are for engines: `verify` reads them."""
    randomness = random.Random(21)
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        rows = [row for row in await world.stored().rows_of(root.id) if row.role != "view"]
        assert {row.role for row in rows} == {"data", "table-metadata", "tail", "metadata", "checkpoint"}
        for row in rows:
            file = file_of(world, row.path)
            data = file.read_bytes()
            for is_removed in (True, False):
                changed = bytearray(data)
                changed[randomness.randrange(len(data))] ^= 1 << randomness.randrange(8)
                file.unlink(missing_ok=True)
                if not is_removed:
                    file.write_bytes(changed)
                report = await drill_of(world).run(root.id)
                assert report.outcome == "failed", (row, is_removed)
                assert any(row.path in finding.text for finding in report.findings), (row, report.findings)
            file.write_bytes(data)
        assert (await drill_of(world).run(root.id)).outcome == "passed"
        assert folders_in(tmp_path / "scratch") == set()


@pytest.mark.asyncio
async def test_a_restore_that_lost_messages_fails_the_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison judges the restore too: a tail that is not written is told with its shard."""
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        monkeypatch.setattr(backup_drill.RestoreRun, "_write_tails", _write_nothing)
        report = await drill_of(world).run(root.id)
        assert [finding.text for finding in report.findings] == ["shard 0: the backup has 10 messages, 6 were restored"]


async def _write_nothing(*_: object) -> None:
    return None


@pytest.mark.asyncio
async def test_a_restored_file_that_changed_on_its_way_fails_the_drill(tmp_path: Path) -> None:
    """The same number of messages with other contents: found by the digest."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    def swap(broker: ScratchBroker) -> None:
        file = max((broker.folder / "warehouse").rglob("*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)
        table = pq.read_table(file)
        payloads = table["payload"].to_pylist()
        number = table.schema.get_field_index("payload")
        changed = table.set_column(number, table.schema.field(number), [payloads[1:] + payloads[:1]])
        pq.write_table(changed, file)

    async with backup_world(tmp_path) as world:
        await prepare(world)
        report = await drill_of(world, on_restored=swap).run((await world.back_up()).id)
        assert report.outcome == "failed"
        assert "offsets or contents differ" in report.findings[0].text


@pytest.mark.asyncio
async def test_a_subscription_that_did_not_come_back_fails_the_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        monkeypatch.setattr(backup_drill.RestoreRun, "_subscriptions", lambda *_: [])
        report = await drill_of(world).run(root.id)
        assert [finding.text for finding in report.findings] == ["subscription s was not restored"]


@pytest.mark.asyncio
async def test_a_drill_without_room_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        usage = backup_drill.shutil.disk_usage(tmp_path)
        monkeypatch.setattr(backup_drill.shutil, "disk_usage", lambda _: usage._replace(free=100))
        with pytest.raises(errors.Refused, match="are free"):
            await drill_of(world).run(root.id)
        assert not (tmp_path / "scratch").exists()


@pytest.mark.asyncio
async def test_a_cursor_that_came_back_elsewhere_fails_the_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        key = cursor_key(ORDERS, "s", 0, 1)
        await world.node.store.put(key, encode(CursorRecord(0, 4, await world._topic_id(), 1)))
        root = await world.back_up()
        assert (await drill_of(world).run(root.id)).findings == []
        subscriptions = backup_drill.RestoreRun._subscriptions

        def moved(*arguments: Any) -> Any:
            (entry,) = subscriptions(*arguments)
            name, record, ((shard, cursor),) = entry
            at_seven = msgspec.structs.replace(decode(CursorRecord, key, cursor), offset=7)
            return [(name, record, [(shard, encode(at_seven))])]

        monkeypatch.setattr(backup_drill.RestoreRun, "_subscriptions", moved)
        (finding,) = (await drill_of(world).run(root.id)).findings
        assert finding.text == "subscription s resumes shard 0 at 7, its cursor in the backup is 4"


# --- reports ----------------------------------------------------------------------------------------------------------


def report_at(started_ms: int, outcome: Outcome = "passed", node: str = "n") -> DrillReport:
    backup = "20261118T201500Z-3fa9c1d2"
    return DrillReport(
        1, backup, "copy", node, "", started_ms, started_ms + 5, 1, 1, outcome, 0, 0, [], {}, [], []
    )  # fmt: skip


def test_a_report_is_signed_and_any_change_of_it_is_found() -> None:
    key, other = DrillKey(b"a" * 32), DrillKey(b"b" * 32)
    report = report_at(1_000)
    data = encode_report(report, key)
    assert decode_report("r", data, key.id) == (report, SignatureState.OWN)
    assert decode_report("r", data, other.id) == (report, SignatureState.OTHER)
    forged = data.replace(b'"passed"', b'"failed"')
    assert decode_report("r", forged, key.id)[1] is SignatureState.INVALID
    stolen = msgspec.json.decode(encode_report(report_at(2_000), other))
    stolen["signature"]["key_id"] = key.id
    assert decode_report("r", msgspec.json.encode(stolen), key.id)[1] is SignatureState.INVALID
    for position in range(len(data)):
        changed = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        try:
            decoded, state = decode_report("r", changed, key.id)
        except errors.BackupDamaged:
            continue
        assert state is not SignatureState.OWN or decoded == report


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"report": 1, "signature": {}}', b"\xff"])
def test_what_is_no_report_is_damaged(data: bytes) -> None:
    with pytest.raises(errors.BackupDamaged):
        decode_report("r", data)


@pytest.mark.asyncio
async def test_reports_are_kept_in_the_target_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icestream.limits.DRILL_REPORTS_MAX", 2)
    async with backup_world(tmp_path) as world:
        key = open_drill_key(tmp_path, SystemRandomness())
        assert open_drill_key(tmp_path, SystemRandomness()).id == key.id
        assert (tmp_path / "drill.key").stat().st_mode & 0o777 == 0o600
        for number in (1, 2, 3):
            await put_report(world.target, report_at(number * 1_000), key)
        await world.target.put("drills/99990101T000000Z-x.json", b"{}")
        drills = await stored_drills(world.target, key.id)
        assert [drill.report and drill.report.started_ms for drill in drills] == [2_000, 3_000, None]
        assert [drill.signature for drill in drills] == ["own", "own", "invalid"]


@pytest.mark.parametrize(
    ("started_ms", "now_ms", "due_ms"),
    [(None, 0, 0), (0, 0, HOUR), (0, HOUR, 0), (0, 2 * HOUR, 0), (10 * HOUR, 0, HOUR), (HOUR, HOUR + 1, HOUR - 1)],
)
def test_a_drill_is_due_an_interval_after_the_last_began(started_ms: int | None, now_ms: int, due_ms: int) -> None:
    assert drill_due_in_ms(started_ms, HOUR, now_ms) == due_ms


# --- in intervals -----------------------------------------------------------------------------------------------------


class DrillWorld:
    """The drills of the node of a world; `outcomes`: of the next ones, an error is raised."""

    def __init__(self, world: BackupWorld, interval: str = "1h") -> None:
        target = world.target.location("").removeprefix("file:")
        drill = {"interval_ms": interval, "directory": str(world.folder / "scratch")}
        self.settings = node_settings(world.folder / "data", "iceberg", backup={"target": target, "drill": drill})
        self.world = world
        self.clock = FakeClock()
        self.outcomes: list[Outcome | Exception] = []
        self.drilled: list[str] = []
        self.drills = ScheduledDrills(
            self.settings, world.call, self.clock, SystemRandomness(), InlineOffload(), self._drill
        )

    @property
    def count(self) -> int:
        return len(self.drilled)

    async def _drill(self, backup_id: str) -> str:
        self.drilled.append(backup_id)
        outcome = self.outcomes.pop(0) if self.outcomes else "passed"
        if isinstance(outcome, Exception):
            raise outcome
        report = report_at(self.clock.wall_us() // 1_000, outcome, self.settings.node.name)
        await put_report(self.world.target, report, open_drill_key(self.settings.data_dir, SystemRandomness()))
        return outcome


def passed_at() -> float:
    value = REGISTRY.get_sample_value("icestream_backup_drill_success_timestamp_seconds")
    assert value is not None
    return value


@pytest.mark.asyncio
async def test_drills_come_in_intervals_and_the_last_that_passed_is_a_metric(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        drills = DrillWorld(world)
        await drills.drills.run_pass()
        assert (drills.count, passed_at()) == (0, 0), "there is no backup yet"
        await prepare(world)
        await world.back_up()
        assert await drills.drills.run_pass() == HOUR
        first = passed_at()
        assert drills.count == 1
        assert first > 0
        drills.clock.advance(1_800)
        assert await drills.drills.run_pass() == HOUR // 2
        assert drills.count == 1
        drills.clock.advance(1_800)
        drills.outcomes = ["failed"]
        await drills.drills.run_pass()
        assert (drills.count, passed_at()) == (2, first), "a drill that failed is no success"
        again = DrillWorld(world)
        again.clock.advance(3_600 + 60)
        await again.drills.run_pass()
        assert (again.count, passed_at()) == (0, first), "the target says what is due, also after a restart"


@pytest.mark.asyncio
async def test_a_drill_that_could_not_run_is_tried_again_before_the_interval_is_over(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        await world.back_up()
        drills = DrillWorld(world)
        drills.outcomes = [errors.EngineFailed("killed")]
        assert await drills.drills.run_pass() == HOUR // 10
        assert drills.count == 1
        drills.clock.advance(360)
        await drills.drills.run_pass()
        assert drills.count == 2


@pytest.mark.asyncio
async def test_reports_of_others_do_not_count_as_drills_of_the_node(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        drills = DrillWorld(world)
        name = drills.settings.node.name
        own = open_drill_key(drills.settings.data_dir, SystemRandomness())
        await put_report(world.target, report_at(5_000, node=name), DrillKey(b"x" * 32))
        await put_report(world.target, report_at(6_000, node="other"), own)
        assert await last_drills(world.target, name, own.id) == (None, None)
        await put_report(world.target, report_at(1_000, node=name), own)
        await put_report(world.target, report_at(2_000, "failed", node=name), own)
        assert await last_drills(world.target, name, own.id) == (2_000, 1_005)


@pytest.mark.asyncio
async def test_a_node_drills_no_backup_of_a_node_with_the_same_name(tmp_path: Path) -> None:
    """The name is the default, and the target is shared: of the other one it may not even have the key."""
    async with backup_world(tmp_path / "one") as one, backup_world(tmp_path / "two") as two:
        await prepare(one)
        await prepare(two)
        two.target = one.target
        own = await one.back_up()
        await two.back_up()
        drills = DrillWorld(one)
        await drills.drills.run_pass()
        assert drills.drilled == [own.id]


@pytest.mark.asyncio
async def test_a_drill_in_a_process_of_its_own_reports_into_the_target(tmp_path: Path) -> None:
    async with backup_world(tmp_path) as world:
        await prepare(world)
        root = await world.back_up()
        settings = DrillWorld(world).settings
        drills = ScheduledDrills(settings, world.call, SystemClock(), SystemRandomness(), InlineOffload())
        await drills.run_pass()
        (drill,) = await stored_drills(world.target, open_drill_key(settings.data_dir, SystemRandomness()).id)
        assert drill.report is not None
        assert (drill.report.backup, drill.report.outcome, drill.signature) == (root.id, "passed", SignatureState.OWN)
        assert drill.report.messages == 10


@pytest.mark.asyncio
async def test_folders_of_drills_that_were_killed_are_removed_by_the_next(tmp_path: Path) -> None:
    offload = InlineOffload()
    async with ScratchBroker(tmp_path, offload) as first:
        async with ScratchBroker(tmp_path, offload) as second:
            assert {first.folder, second.folder} == folders_in(tmp_path), "one that runs is left alone"
        stale = tmp_path / "icestream-drill-stale"
        stale.mkdir()
        (stale / "lock").touch()
        async with ScratchBroker(tmp_path, offload) as third:
            assert {first.folder, third.folder} == folders_in(tmp_path)
    assert folders_in(tmp_path) == set()
