"""The archive of a real node: what is in it, what may interrupt it, and restores to a point in time."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.backup.archive_object import archive_name
from icestream.backup.archive_run import ArchiveEffect
from icestream.backup.encryption import BackupKey
from icestream.backup.stored_archive import ArchiveBase, stored_heads
from icestream.broker import records
from icestream.broker.records import CURSORS, CursorRecord
from icestream.metadata.snapshot import load_snapshot
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.processes.point_in_time import END, CutOffset, CutTime, base_for
from icestream.processes.restore_run import restorable_topics
from icestream.runtime.clock import SystemClock
from tests.support.archive_world import ArchiveWorld, archive_world, topic_names
from tests.support.backup_world import ORDERS, Crash
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.asyncio
COLD = {"wal": {"warm_ms": 0, "warm_bytes": 0}}
KEY = BackupKey(bytes(range(32)))


async def prepare(world: ArchiveWorld) -> int:
    """An archive that begins, ten messages behind it, six of them in the table."""
    topic_id = await world.world.create_topic()
    await world.world.bind()
    await world.archive.run_pass()
    await world.world.publish(10)
    await world.world.commit(6)
    return topic_id


def payloads(start: int, end: int) -> list[tuple[int, bytes]]:
    return [(offset, b"m%d" % offset) for offset in range(start, end)]


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_every_message_up_to_a_time_is_there_once_and_none_behind_it(
    tmp_path: Path, key: BackupKey | None
) -> None:
    async with archive_world(tmp_path, key) as world:
        await prepare(world)
        base = await world.world.back_up(key=key)
        times = []
        for _ in range(4):
            times.append(world.now())
            await world.world.publish(3)
            await world.archive.run_pass()
        for number, time_us in enumerate(times):
            past = await world.past(base, time_us)
            # The tail of the base begins behind the table.
            assert await world.messages(past) == payloads(6, 10 + 3 * number)
        steps: list[tuple[int, int]] = []
        assert await world.stored.verify(lambda done, all_: steps.append((done, all_))) == []
        assert steps == [(number, len(steps)) for number in range(1, len(steps) + 1)]
        objects = (tmp_path / "backups" / "archive").rglob("*.archive")
        assert any(b"m12" in path.read_bytes() for path in objects) == (key is None)


async def test_a_time_that_is_not_archived_yet_and_one_before_the_base_are_refused(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        before = world.now()
        await prepare(world)
        base = await world.world.back_up()
        with pytest.raises(errors.InvalidInput, match="no backup lies before"):
            base_for([base], CutTime(before))
        assert base_for([base], CutTime(world.now())) is base
        with pytest.raises(errors.InvalidInput, match=re.escape("the archive reaches")):
            await world.past(base, world.now())
        await world.archive.run_pass()
        assert (await world.past(base, base.cut_ms * 1_000 + 1)).root.id.startswith(base.id)


async def test_an_offset_cuts_everything_at_its_record(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        await world.world.publish(8)
        await world.archive.run_pass()
        for offset in (10, 13, 18):
            past = await world.past(base, CutOffset(str(ORDERS), 0, offset))
            assert await world.messages(past) == payloads(6, offset)
        assert await world.messages(await world.past(base, END)) == payloads(6, 18)
        with pytest.raises(errors.InvalidInput, match="offset 19 of /default/orders, shard 0 is not in the archive"):
            await world.past(base, CutOffset(str(ORDERS), 0, 19))
        with pytest.raises(errors.InvalidInput, match="no backup lies before"):
            base_for([base], CutOffset(str(ORDERS), 0, 9))


async def test_cursors_are_those_of_the_time_and_pass_no_end(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        topic_id = await prepare(world)
        await world.world.call("create_subscription", topic=str(ORDERS), subscription="s")
        base = await world.world.back_up()
        await world.world.publish(5)

        async def cursor_at(time_us: int) -> int:
            past = await world.past(base, time_us)
            data = await past.stored.content(past.root.metadata, "metadata")
            entries = load_snapshot(io.BytesIO(data).read).entries
            return records.decode(CursorRecord, "cursor", entries[f"{CURSORS}s/default/orders"].value).offset

        times = []
        for offset in (11, 13, 99):
            cursor = CursorRecord(1, offset, topic_id, 0)
            await world.world.node.store.put(f"{CURSORS}s/default/orders", records.encode(cursor))
            times.append(world.now())
        await world.archive.run_pass()
        assert [await cursor_at(time_us) for time_us in times] == [11, 13, 15]


async def test_topics_that_came_and_went_since_the_base(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        created = TopicName("default", "later")
        await world.world.call("create_topic", topic=str(created), shards=1)
        between = world.now()
        await world.world.call("delete_topic", topic=str(ORDERS))
        behind = world.now()
        await world.archive.run_pass()
        past = await world.past(base, between)
        assert topic_names(past) == {str(ORDERS), str(created)}
        assert {topic.name for topic in await restorable_topics(past.stored, past.root)} >= {str(ORDERS), str(created)}
        past = await world.past(base, behind)
        assert str(ORDERS) not in {topic.name for topic in await restorable_topics(past.stored, past.root)}


@pytest.mark.parametrize("effect", [effect for effect in ArchiveEffect if effect is not ArchiveEffect.RETAIN], ids=str)
async def test_a_pass_that_ended_before_any_step_is_continued_without_hole_or_doubling(
    tmp_path: Path, effect: ArchiveEffect
) -> None:
    def crash(reached: ArchiveEffect) -> None:
        if reached is effect:
            raise Crash

    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        await world.world.publish(3)
        await world.archive.run_pass()
        await world.world.publish(3)
        with pytest.raises(Crash):
            await world.new_run(crash).run_pass()
        await world.world.publish(3)
        await world.new_run().run_pass()
        time_us = world.now()
        await world.world.publish(3)
        await world.archive.run_pass()
        assert await world.messages(await world.past(base, time_us)) == payloads(6, 19)
        assert await world.stored.verify() == []


async def test_an_upload_that_seemed_to_fail_is_not_archived_twice(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        put_new = world.world.target.put_new

        async def unknown(name: str, data: bytes) -> None:
            await put_new(name, data)
            world.world.target.put_new = put_new  # type: ignore[method-assign]
            raise errors.StorageUnavailable("no answer")

        world.world.target.put_new = unknown  # type: ignore[method-assign]
        with pytest.raises(errors.StorageUnavailable):
            await world.archive.run_pass()
        await world.world.publish(2)
        with pytest.raises(errors.AlreadyExists):
            await world.archive.run_pass()
        await world.archive.run_pass()
        past = await world.past(base, CutOffset(str(ORDERS), 0, 12))
        assert await world.messages(past) == payloads(6, 12)
        assert await world.stored.verify() == []


async def test_hazard_91_a_target_that_is_down_costs_a_gap_and_not_the_disk(tmp_path: Path) -> None:
    async with archive_world(tmp_path, sections=COLD, held_bytes_max=100_000) as world:
        topic_id = await prepare(world)
        base = await world.world.back_up()
        node = world.world.node
        assert node.log is not None
        assert node.archive is not None
        before = world.now()
        await world.archive.run_pass()
        for _ in range(8):
            await world.world.publish(8, payload=b"x" * 6_000)
            await world.world.commit(node.log.shard(topic_id).synced, is_floor_moved=True)
        await node.archive.mark(0, 0)
        await node.log.lifecycle.free_due_files()
        assert node.log.reader.first_lsn() > base.nodes[0].lsn, "beyond the bound nothing is held"
        await world.archive.run_pass()
        behind = world.now()
        await world.archive.run_pass()
        (head,) = await stored_heads(world.world.target)
        (gap,) = head.gaps
        assert gap.to_lsn > gap.from_lsn
        assert [finding.severity for finding in await world.stored.verify()] == ["warning"]
        await world.past(base, before)
        with pytest.raises(errors.InvalidInput, match="the archive has a gap"):
            await world.past(base, behind)
        closing = await world.world.back_up()
        time_us = world.now()
        await world.world.publish(1)
        await world.archive.run_pass()
        await world.past(closing, time_us)


async def test_the_log_is_held_until_it_is_archived(tmp_path: Path) -> None:
    async with archive_world(tmp_path, sections=COLD) as world:
        topic_id = await prepare(world)
        base = await world.world.back_up()
        node = world.world.node
        assert node.log is not None
        await world.archive.run_pass()
        for _ in range(4):
            await world.world.publish(8, payload=b"x" * 6_000)
            await world.world.commit(node.log.shard(topic_id).synced, is_floor_moved=True)
        first = node.log.reader.first_lsn()
        time_us = world.now()
        await world.archive.run_pass()
        past = await world.past(base, time_us)
        assert len(await world.messages(past)) == 36, "4 of the base and 32 that the table has already"
        await world.archive.run_pass()  # the mark gives back what the pass before has archived
        await node.log.lifecycle.free_due_files()
        assert node.log.reader.first_lsn() > first


async def test_hazard_90_a_clock_that_stepped_back_leaves_a_prefix(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        node = world.world.node
        assert node.log is not None
        clock = FakeClock(SystemClock())
        node.log._clock = clock
        await world.world.publish(2)
        time_us = world.now() + 1_000_000
        clock.step(3_600)
        await world.world.publish(2)
        clock.step(-3_600)
        await world.world.publish(2)
        while world.now() <= time_us:  # the archive passes T
            await world.world.publish(1)
        await world.archive.run_pass()
        assert await world.messages(await world.past(base, time_us)) == payloads(6, 12)


async def test_a_broker_that_was_started_again_loses_no_change_of_metadata(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        await world.archive.run_pass()
        service = world.world.node.archive
        assert service is not None
        created = TopicName("default", "later")
        await world.world.call("create_topic", topic=str(created), shards=1)
        between = world.now()
        service._forget_changes(await world.world.node.store.revision())
        await world.archive.run_pass()
        time_us = world.now()
        await world.world.publish(1)
        await world.archive.run_pass()
        assert str(created) in topic_names(await world.past(base, time_us))
        with pytest.raises(errors.PositionGone):
            await service.changes(0)
        assert str(created) not in topic_names(await world.past(base, between)), "it has no message yet"


async def test_a_topic_whose_change_was_seen_late_is_there_with_its_messages(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        created = TopicName("default", "later")
        await world.world.call("create_topic", topic=str(created), shards=1)
        await world.publish_to(created, 4)
        time_us = world.now()
        service = world.world.node.archive
        assert service is not None
        service._forget_changes(await world.world.node.store.revision())
        await world.archive.run_pass()
        past = await world.past(base, time_us)
        assert await world.messages(past, str(created)) == payloads(0, 4)
        assert past.root.incomplete == []


async def test_a_flipped_bit_or_a_missing_object_is_named(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        base = await world.world.back_up()
        for _ in range(3):
            await world.world.publish(2)
            await world.archive.run_pass()
        seqs = await world.stored.seqs()
        name = archive_name(world.stored.node, world.stored.log_id, seqs[-2])
        path = tmp_path / "backups" / name
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), max(1, len(data) // 24)):
            flipped = bytearray(data)
            flipped[at] ^= 1
            path.write_bytes(flipped)
            assert name in [finding.object for finding in await world.stored.verify() if finding.severity == "error"]
        with pytest.raises(errors.BackupDamaged, match=re.escape(name)):
            await world.past(base, CutOffset(str(ORDERS), 0, 16))
        path.unlink()
        (finding,) = await world.stored.verify()
        assert f"objects {seqs[-2]} to {seqs[-2]} do not exist" in finding.text
        with pytest.raises(errors.BackupDamaged, match="has a hole"):
            await world.past(base, CutOffset(str(ORDERS), 0, 16))


async def test_a_damaged_last_object_is_followed_by_a_gap(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        await world.archive.run_pass()
        (seq,) = [(await world.stored.seqs())[-1]]
        path = tmp_path / "backups" / archive_name(world.stored.node, world.stored.log_id, seq)
        path.write_bytes(path.read_bytes()[:-40])
        await world.new_run().run_pass()
        base = await world.world.back_up()
        await world.world.publish(2)
        await world.archive.run_pass()
        past = await world.past(base, CutOffset(str(ORDERS), 0, 12))
        assert await world.messages(past) == payloads(6, 12)


async def test_nothing_to_archive_writes_nothing_but_a_head_each_minute(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        clock = FakeClock()
        run = world.new_run(clock=clock)
        await run.run_pass()
        seqs, head = await world.stored.seqs(), await world.stored.head()
        for _ in range(3):
            assert (await run.run_pass()).objects == 0
        assert await world.stored.head() == head
        clock.advance(limits.ARCHIVE_HEAD_SECONDS)
        await run.run_pass()
        later = await world.stored.head()
        assert head is not None
        assert later is not None
        assert later.until_us > head.until_us
        assert await world.stored.seqs() == seqs


async def test_the_age_is_what_a_disaster_would_lose(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        clock = FakeClock(SystemClock())
        run = world.new_run(clock=clock)
        assert run.age_seconds == 0
        await run.run_pass()
        assert run.age_seconds < 5
        clock.advance(10)
        assert 10 <= run.age_seconds < 15
        await world.world.create_topic()
        await world.world.publish(1)
        assert run.age_seconds >= 10, "a message is not archived by itself"
        clock.step(-10)
        await run.run_pass()
        assert run.age_seconds < 5


async def test_retention_keeps_what_a_backup_needs(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        await prepare(world)
        for _ in range(3):
            await world.world.publish(2)
            await world.archive.run_pass()
        base = await world.world.back_up()
        await world.world.publish(2)
        await world.archive.run_pass()
        before = await world.stored.seqs()
        await world.archive.retain([], 0)
        assert await world.stored.seqs() == before, "without a backup nothing is removed"
        (node,) = base.nodes
        await world.archive.retain([ArchiveBase(node.log_id, node.lsn, base.cut_ms)], 0)
        assert len(await world.stored.seqs()) < len(before)
        past = await world.past(base, CutOffset(str(ORDERS), 0, 18))
        assert await world.messages(past) == payloads(6, 18)
        await world.new_run().run_pass()


async def test_the_past_is_a_prefix_of_every_shard_and_ends_are_in_the_root(tmp_path: Path) -> None:
    async with archive_world(tmp_path) as world:
        topic_id = await world.world.create_topic(shards=2)
        await world.archive.run_pass()
        base = await world.world.back_up()
        await world.world.publish(3, shard=1)
        time_us = world.now()
        await world.world.publish(4, shard=0)
        await world.archive.run_pass()
        past = await world.past(base, time_us)
        (topic,) = [topic for topic in past.root.topics if topic.id == topic_id]
        assert [(shard.end, shard.reserved) for shard in topic.shards] == [(0, 4), (3, 3)]
        assert ShardKey(topic_id, 0) != ShardKey(topic_id, 1)


async def test_a_topic_that_was_created_between_the_cut_and_the_freeze_of_the_base_is_in_the_past(
    tmp_path: Path,
) -> None:
    """The base has its record and not its log, which is entirely in the archive."""
    async with archive_world(tmp_path) as world:
        await prepare(world)
        run, new = world.world.run(), TopicName("default", "new")

        async def call(method: str, /, **arguments: object) -> object:
            if method == "backup_freeze":
                await world.world.call("create_topic", topic=str(new))
                await world.publish_to(new, 5)
            return await world.world.link.call(method, dict(arguments))

        run._node._call = call
        base = await run.run()
        assert str(new) in {topic.topic for topic in base.left_out}
        time_us = world.now()
        await world.archive.run_pass()
        past = await world.past(base, time_us)
        assert str(new) in topic_names(past)
        assert len(await world.messages(past, str(new))) == 5
