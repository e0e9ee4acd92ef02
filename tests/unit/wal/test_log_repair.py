"""Damage is listed exactly, and the repair keeps everything that is not listed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

import pytest

from icestream import errors, limits
from icestream.model import ShardKey, SyncMode, TopicIdentity, envelope
from icestream.model.block import encode_block
from icestream.model.shard import DeclaredGap, GapState
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.randomness import SeededRandomness
from icestream.runtime.simulated_disk import Crash, SimulatedDisk
from icestream.wal import format as wire
from icestream.wal.appender import require_placed
from icestream.wal.damage import ClosingFile, RepairPlan, plan_repair, read_records
from icestream.wal.format import RECORDS_START
from icestream.wal.inspect import view_log
from icestream.wal.log_copy import LogFileBuilder, publish_copy
from icestream.wal.log_file import REPAIR_NAME, SEAL_POSITION, FileHeader, log_name
from icestream.wal.log_options import LogOptions
from icestream.wal.log_repair import apply_repair
from icestream.wal.losses import Loss
from icestream.wal.notes import gap_section, topic_section
from icestream.wal.open_log import open_log_on
from icestream.wal.record_scan import find_headers
from icestream.wal.sink import InlineSink
from icestream.wal.survey import survey
from icestream.wal.write_ahead_log import WriteAheadLog
from tests.support.damage import Damage, FlippedBit, MissingFile, TruncatedFile, flips
from tests.support.sample_logs import LOGS, picture
from tests.support.small_log import A, B, LogImage, SectionPlace, SmallLog, contents, open_small, read_shard

CLOCK = SimulatedClock()


def repair(disk: SimulatedDisk) -> tuple[RepairPlan, list[str]]:
    plan = plan_repair(disk)
    assert plan.refusal is None
    return plan, apply_repair(disk, CLOCK, plan)


def damaged(drawn: LogImage, *damages: Damage) -> SimulatedDisk:
    disk = drawn.disk()
    for damage in damages:
        damage.do(disk)
    return disk


def in_gap(gaps: Iterable[DeclaredGap], key: ShardKey, offset: int) -> bool:
    return any(gap.key == key and gap.start <= offset < gap.end and gap.state is GapState.LOST for gap in gaps)


async def check_repaired(drawn: LogImage, disk: SimulatedDisk, damage: Damage, listed: list[DeclaredGap]) -> None:
    """The log opens; what is gone was hit, listed and declared; offsets go on above all that were ever given out."""
    log = await open_small(disk, drawn.mode)
    for key, messages in drawn.acked.items():
        payloads = await read_shard(log, key)
        hit = {at for place in drawn.places() if place.key == key and damage.hits(place) for at in place.offsets}
        for offset, payload in messages.items():
            if offset in payloads:
                assert payloads[offset] == payload, f"{damage}: offset {offset} of {key}"
                assert not in_gap(log.gaps(key), key, offset), f"{damage}: {offset} of {key} is there and given up"
                continue
            assert offset in hit, f"{damage}: offset {offset} of {key} was not hit, and is gone"
            if key in log.state.shards:
                assert in_gap(listed, key, offset), f"{damage}: offset {offset} of {key} is not listed"
                assert in_gap(log.gaps(key), key, offset), f"{damage}: offset {offset} of {key} is not declared"
        strange = {offset for offset in payloads if offset >= drawn.floors[key]} - messages.keys()
        assert not strange, f"{damage}: {strange} of {key} came from nowhere"
        if key in log.state.shards:
            await check_goes_on(log, drawn, damage, key)
        else:
            assert hit >= messages.keys(), f"{damage}: {key} is forgotten, but not all of it was hit"
    await log.close()


async def check_goes_on(log: WriteAheadLog, drawn: LogImage, damage: Damage, key: ShardKey) -> None:
    batch = log.batch(log.shard(*key), encode_block(1, {envelope.PAYLOAD: [b"new"]}))
    (new,) = require_placed(await log.append([batch]))
    assert new.base_offset > max(drawn.acked[key], default=-1), f"{damage}: {new.base_offset} of {key} is given twice"
    assert new.base_offset >= drawn.reserved[key], f"{damage}: {key} goes on below its promise"
    assert (await read_shard(log, key))[new.base_offset] == b"new"


async def check_repair(drawn: LogImage, damage: Damage) -> RepairPlan:
    disk = damaged(drawn, damage)
    before = contents(disk)
    plan = plan_repair(disk)
    assert contents(disk) == before, f"{damage}: planning changed something"
    set_aside = apply_repair(disk, CLOCK, plan)
    if not plan.is_needed:
        assert contents(disk) == before, f"{damage}: nothing was wrong, and something was changed"
    assert not plan_repair(disk).is_needed, f"{damage}: a second repair finds something"
    for aside in set_aside:
        assert disk.content(aside) == before[aside.split("-", 2)[2]], f"{damage}: {aside} is not the original"
    await check_repaired(drawn, disk, damage, plan.gaps)
    again = await open_small(disk, drawn.mode)
    assert again.report.clean, f"{damage}: the second start was not clean"
    assert not plan_repair(disk).is_needed, f"{damage}: damage is left"
    return plan


def check_all(drawn: LogImage, damages: Iterable[Damage]) -> list[RepairPlan]:
    async def check() -> list[RepairPlan]:
        return [await check_repair(drawn, damage) for damage in damages]

    return asyncio.run(check())


def place_of(drawn: LogImage, lsn: int, key: ShardKey) -> SectionPlace:
    return next(place for place in drawn.places() if (place.lsn, place.key) == (lsn, key))


# --- every kind of damage to every kind of log ------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOGS)
def test_a_healthy_log_is_not_changed(name: str) -> None:
    disk = picture(name).disk()
    before = contents(disk)
    plan, set_aside = repair(disk)
    assert (plan.is_needed, plan.losses, set_aside) == (False, [], [])
    assert contents(disk) == before


@pytest.mark.parametrize("name", LOGS)
def test_flips_in_records_and_first_pages(name: str) -> None:
    """Damage in the last batch of a log that was killed cannot be told from its unsynced end."""
    drawn = picture(name)
    *_, last = drawn.places()
    for file in drawn.logs():
        end = drawn.used(file)
        records = range(RECORDS_START, end, max((end - RECORDS_START) // 24, 1))
        page = range(3, SEAL_POSITION + 60, 97)
        end_of_evidence = last.record.start if file == last.file and not drawn.seal(file) else end
        every = itertools.chain(flips(drawn, file, page), flips(drawn, file, records))
        check_all(drawn, [flip for flip in every if flip.bit >> 3 < end_of_evidence])


@pytest.mark.parametrize("name", LOGS)
def test_cuts(name: str) -> None:
    drawn = picture(name)
    for file in drawn.logs():
        end = drawn.used(file)
        inside = range(RECORDS_START, end, max((end - RECORDS_START) // 12, 1))
        check_all(drawn, [TruncatedFile(file, size) for size in (0, 300, 512, 700, 1024, 4000, *inside)])


@pytest.mark.parametrize("name", LOGS)
def test_missing_files(name: str) -> None:
    drawn = picture(name)
    check_all(drawn, [MissingFile(file) for file in drawn.files])


@pytest.mark.parametrize("name", ["stopped", "stopped then killed"])
def test_bad_checkpoints_are_harmless(name: str) -> None:
    drawn = picture(name)
    for file in drawn.files:
        if file.startswith("checkpoint"):
            plans = check_all(
                drawn, [*flips(drawn, file, range(0, 570, 95)), TruncatedFile(file, 100), TruncatedFile(file, 0)]
            )
            assert not any(plan.gaps for plan in plans)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("stopped then killed", FlippedBit("log-0000000000000001.wal", 8 * (RECORDS_START + 20))),
        ("stopped then killed", MissingFile("log-0000000000000003.wal")),
        ("killed often", MissingFile("log-0000000000000006.wal")),
        ("killed often", TruncatedFile("log-0000000000000006.wal", 300)),
        ("killed", TruncatedFile("log-0000000000000001.wal", RECORDS_START + 900)),
    ],
)
def test_a_crash_at_any_step_of_a_repair_leaves_a_repairable_log(name: str, damage: Damage, power: bool) -> None:
    """An interruption leaves no trace: the directory equals that of an uninterrupted repair."""
    drawn = picture(name)
    whole = damaged(drawn, damage)
    is_seen = view_log(whole).damage is not None
    plan, _ = repair(whole)
    for operations in itertools.count():
        disk = damaged(drawn, damage)
        disk.crash_after(operations)
        try:
            repair(disk)
        except Crash:
            disk.power_loss() if power else disk.kill()
            if is_seen:  # a start does not read what its checkpoint covers
                check_refused_or_whole(disk, contents(whole))
            repair(disk)
            assert contents(disk) == contents(whole), f"interrupted at operation {operations}"
        else:
            break
    assert operations > 8, "a repair has more steps than that"
    asyncio.run(check_repaired(drawn, whole, damage, plan.gaps))


def check_refused_or_whole(disk: SimulatedDisk, repaired: dict[str, bytes]) -> None:
    """A start in between changes nothing, and takes nothing that is half repaired for a log."""
    before = contents(disk)
    damage = view_log(disk).damage
    if damage is None:
        assert {name: before[name] for name in repaired} == repaired
    else:
        assert "icestream wal repair" in damage.hint
    assert contents(disk) == before


def test_a_repair_that_was_decided_is_finished_and_not_planned_again() -> None:
    drawn = picture("killed often")
    disk = damaged(drawn, FlippedBit(drawn.logs()[1], 8 * place_of(drawn, 5, A).body.start))
    disk.create(REPAIR_NAME).close()
    with pytest.raises(errors.LogDamaged, match="a repair of sim: was interrupted") as caught:
        asyncio.run(open_small(disk))
    assert "icestream wal repair sim: --accept-loss` finishes it" in caught.value.hint
    plan = plan_repair(disk)
    assert (plan.is_needed, plan.is_decided, plan.losses, plan.rewrites) == (True, True, [], [])
    assert apply_repair(disk, CLOCK, plan) == []
    assert REPAIR_NAME not in disk.names()
    assert plan_repair(disk).losses, "now it is planned"


def test_remains_of_an_undecided_repair_are_removed_by_a_start() -> None:
    drawn = picture("stopped")
    disk = drawn.disk()
    for name in (f"mended-{drawn.logs()[0]}", f"aside-{drawn.logs()[0]}"):
        disk.create(name).close()
    log = asyncio.run(open_small(disk))
    assert asyncio.run(read_shard(log, A)) == drawn.acked[A]
    assert not [name for name in disk.names() if name.startswith(("mended-", "aside-"))]


# --- what exactly is lost ---------------------------------------------------------------------------------------------


def test_hazard_19_a_bad_section_costs_its_own_offsets_and_no_other_section_of_its_record() -> None:
    drawn = picture("stopped then killed")
    place = place_of(drawn, 4, B)
    disk = damaged(drawn, FlippedBit(place.file, 8 * (place.body.start + 40)))
    plan, _ = repair(disk)
    (loss,) = plan.losses
    assert (loss.file, loss.position, loss.size) == (place.file, place.body.start, len(place.body))
    assert (loss.lsn_first, loss.lsn_last) == (4, 4)
    assert loss.gaps == [DeclaredGap(B, 3, 5, 0, "lost to damage of the log", GapState.LOST)]
    assert loss.unknown == []
    log = asyncio.run(open_small(disk))
    assert asyncio.run(read_shard(log, A)) == drawn.acked[A]


def test_hazard_19_a_bad_header_costs_no_message() -> None:
    """Every section of the record is good by itself."""
    drawn = picture("killed often")
    record = place_of(drawn, 4, A).record
    (plan,) = check_all(drawn, [FlippedBit(place_of(drawn, 4, A).file, 8 * (record.start + 40))])
    assert [(loss.lsn_first, loss.lsn_last, loss.gaps) for loss in plan.losses] == [(4, 4, [])]


def test_hazard_19_a_bad_entry_costs_its_section_and_no_other() -> None:
    drawn = picture("killed often")
    place = place_of(drawn, 4, B)
    disk = damaged(drawn, FlippedBit(place.file, 8 * place.entry.start + 8))
    plan, _ = repair(disk)
    assert [(gap.key, gap.start, gap.end) for gap in plan.gaps] == [(B, 3, 4)]
    log = asyncio.run(open_small(disk))
    assert asyncio.run(read_shard(log, A)) == drawn.acked[A]


def test_a_missing_file_loses_its_messages_and_nothing_is_unknown_when_all_shards_continue() -> None:
    drawn = picture("killed often")
    (plan,) = check_all(drawn, [MissingFile("log-0000000000000006.wal")])
    (loss,) = plan.losses
    assert (loss.lsn_first, loss.lsn_last) == (4, 6)
    assert {(gap.key, gap.start, gap.end) for gap in loss.gaps} == {(A, 3, 6), (B, 3, 6)}
    assert loss.unknown == []


def test_a_shard_that_does_not_continue_after_the_loss_skips_possibly_used_offsets() -> None:
    """Record 6, the last of A, is lost; only B comes after it."""
    log = SmallLog()

    async def write() -> LogImage:
        await log.open()
        await log.append({A: 2, B: 1})
        await log.append({A: 5})
        await log.append({B: 1})
        await log.append({B: 1})
        log.kill()
        return log.picture()

    drawn = asyncio.run(write())
    place = place_of(drawn, 2, A)
    (plan,) = check_all(drawn, [FlippedBit(place.file, 8 * place.entry.start + 200)])
    (loss,) = plan.losses
    assert loss.gaps == []
    assert [(gap.key, gap.start) for gap in loss.unknown] == [(A, 2)]
    assert loss.unknown[0].end >= 2 + 2**20, "one block may have had so many messages"


def test_a_checkpoint_after_the_loss_knows_what_was_lost() -> None:
    """The same with a checkpoint that has the end of every shard, so nothing is unknown."""
    drawn = picture("stopped")
    place = place_of(drawn, 2, A)
    (plan,) = check_all(drawn, [FlippedBit(place.file, 8 * place.entry.start + 200)])
    (loss,) = plan.losses
    assert [(gap.key, gap.start, gap.end) for gap in loss.gaps] == [(A, 2, 3)]
    assert loss.unknown == []


def test_the_name_of_a_topic_is_taken_from_wherever_it_is_left() -> None:
    """The note in the file is lost; its footer still has it."""
    drawn = picture("killed often")
    file = drawn.logs()[0]
    record = place_of(drawn, 1, A).record
    disk = damaged(drawn, *(FlippedBit(file, 8 * byte) for byte in range(record.start, record.start + 200, 8)))
    plan, _ = repair(disk)
    assert plan.nameless == []
    log = asyncio.run(open_small(disk))
    assert {topic.id: topic.name for topic in log.state.topics.values()} == {1: "/default/a", 2: "/default/b"}


def test_a_topic_whose_name_is_lost_gets_a_placeholder() -> None:
    drawn = picture("killed")
    file = drawn.logs()[0]
    topics = range(RECORDS_START + 64, RECORDS_START + 64 + 2 * 64, 8)
    disk = damaged(drawn, *(FlippedBit(file, 8 * byte) for byte in topics))
    plan, _ = repair(disk)
    assert [topic.name for topic in plan.nameless] == ["/lost/topic-1", "/lost/topic-2"]
    log = asyncio.run(open_small(disk))
    assert asyncio.run(read_shard(log, A)) == drawn.acked[A]
    assert log.state.topics[1].incarnation == 0
    log.declare_topic(TopicIdentity(1, "/default/a", 3))
    assert log.shard(*A).topic == log.state.topics[1] == TopicIdentity(1, "/default/a", 3)
    log.declare_topic(plan.nameless[0])
    assert log.state.topics[1].name == "/default/a"
    with pytest.raises(errors.InvalidInput):
        log.declare_topic(TopicIdentity(1, "/default/c", 3))


def test_reserved_offsets_among_the_loss_stay_reserved() -> None:
    """In `periodic` offsets are promised ahead; power may have taken records that readers saw."""
    drawn = picture("periodic")
    place = place_of(drawn, 1, A)
    assert drawn.reserved[A] >= 2**20
    check_all(
        drawn, [FlippedBit(place.file, 8 * (place.record.start + 30)), FlippedBit(place.file, 8 * place.entry.start)]
    )


@pytest.mark.parametrize("kind", [wire.RecordKind.DATA, wire.RecordKind.REPAIR])
def test_more_gaps_than_a_record_has_room_for_become_several_records(kind: int) -> None:
    """A directory has an end: a node with very many shards that lost a whole file would pass it."""
    keys = [ShardKey(1, number) for number in range(limits.RECORD_SECTIONS_MAX + 1)]
    sections = [gap_section(DeclaredGap(key, 0, 5, 0, "gone", GapState.LOST)) for key in keys]
    closing = ClosingFile(FileHeader(bytes(16), 1, 0, 0, 0, 0), kind, 1, 1, sections)
    topics = {1: TopicIdentity(1, "/default/a")}
    disk = SimulatedDisk(1)
    apply_repair(disk, CLOCK, RepairPlan(losses=[Loss("log", 0, 0, 1, 1)], closing=closing, topics=topics))
    log = asyncio.run(open_small(disk))
    assert {key: shard.assigned for key, shard in log.state.shards.items()} == dict.fromkeys(keys, 5)


def test_a_torn_end_is_not_damage() -> None:
    """The last record of a log that was killed: nothing says that it was ever whole."""
    drawn = picture("killed")
    *_, last = drawn.places()
    disk = damaged(drawn, FlippedBit(last.file, 8 * last.body.start))
    assert not plan_repair(disk).is_needed
    FlippedBit(last.file, 8 * place_of(drawn, 3, B).body.start).do(disk)
    plan, _ = repair(disk)
    assert [(gap.key, gap.start, gap.end) for gap in plan.gaps] == [(B, 1, 3)]
    log = asyncio.run(open_small(disk))
    assert sorted(asyncio.run(read_shard(log, A))) == [0, 1, 2], "the torn record counts no more than before"


def test_the_newest_files_may_be_missing_when_only_a_checkpoint_knows_them() -> None:
    drawn = picture("stopped then killed")
    disk = damaged(drawn, MissingFile("log-0000000000000003.wal"), MissingFile("log-0000000000000004.wal"))
    plan, _ = repair(disk)
    (loss,) = plan.losses
    assert (loss.file, loss.lsn_first, loss.lsn_last) == ("log-0000000000000003.wal", 4, 5)
    assert {(gap.key, gap.start, gap.end) for gap in loss.gaps} == {(A, 3, 5), (B, 3, 6)}
    assert {(gap.key, gap.start) for gap in loss.unknown} == {(A, 5), (B, 6)}
    asyncio.run(check_repaired(drawn, disk, MissingFile("log-0000000000000003.wal"), plan.gaps))


def test_a_shard_in_a_partly_lost_record_gets_its_gap_before_its_messages() -> None:
    """The shard's gap is noted in that record, before its messages: a start reads them in this order."""
    drawn = picture("killed often")
    place = place_of(drawn, 7, A)
    disk = damaged(drawn, MissingFile(place_of(drawn, 4, A).file), FlippedBit(place.file, 8 * place.body.start))
    plan, _ = repair(disk)
    assert {(gap.key, gap.start, gap.end) for gap in plan.gaps} == {(A, 3, 6), (A, 6, 8), (B, 3, 6)}
    log = asyncio.run(open_small(disk))
    assert sorted(asyncio.run(read_shard(log, A))) == [0, 1, 2, 8]
    assert sorted(asyncio.run(read_shard(log, B))) == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize("left", [0, 8, 60, 100, 150])
def test_a_truncated_file_without_a_header_may_have_had_more(left: int) -> None:
    """Nothing says any more how long it was; but a file that is whole has room for its footer at the end."""
    drawn = picture("killed")
    file = drawn.logs()[0]
    disk = damaged(drawn, FlippedBit(file, 8 * 40), TruncatedFile(file, place_of(drawn, 3, B).record.start + left))
    plan, _ = repair(disk)
    assert {gap.key for loss in plan.losses for gap in loss.unknown} == {A, B}
    log = asyncio.run(open_small(disk))
    for key in (A, B):
        assert log.shard(*key).assigned > max(drawn.acked[key])


# --- after the end was lost -------------------------------------------------------------------------------------------


def positions_beyond(drawn: LogImage) -> dict[ShardKey, int]:
    return {key: max(messages) + 2**60 for key, messages in drawn.acked.items()}


@pytest.mark.parametrize(
    "damage", [TruncatedFile("log-0000000000000003.wal", 4500), MissingFile("log-0000000000000003.wal")]
)
def test_positions_beyond_the_end_are_accepted_after_a_repair_that_lost_the_end(damage: Damage) -> None:
    drawn = picture("stopped then killed")
    disk = damaged(drawn, damage)
    repair(disk)
    positions = positions_beyond(drawn)
    log = asyncio.run(open_small(disk, positions=positions))
    for key, position in positions.items():
        assert log.shard(*key).assigned == position
        assert in_gap(log.gaps(key), key, position - 1)


@pytest.mark.parametrize("lsn", [2, 6], ids=["covered by the checkpoint", "behind it"])
def test_positions_beyond_the_end_are_refused_after_a_repair_that_did_not_lose_the_end(lsn: int) -> None:
    drawn = picture("stopped then killed")
    place = place_of(drawn, lsn, A)
    disk = damaged(drawn, FlippedBit(place.file, 8 * place.body.start))
    plan, _ = repair(disk)
    assert plan.is_needed
    with pytest.raises(errors.LogDamaged, match="is known to have been synced"):
        asyncio.run(open_small(disk, positions=positions_beyond(drawn)))


def test_positions_beyond_the_end_are_refused_again_once_the_log_continued() -> None:
    drawn = picture("stopped then killed")
    disk = damaged(drawn, TruncatedFile("log-0000000000000003.wal", 4500))
    repair(disk)

    async def go_on() -> None:
        log = await open_small(disk)
        await log.append([log.batch(log.shard(*A), encode_block(1, {envelope.PAYLOAD: [b"new"]}))])
        disk.kill()
        await open_small(disk, positions=positions_beyond(drawn))

    with pytest.raises(errors.LogDamaged, match="is known to have been synced"):
        asyncio.run(go_on())


# --- what no repair can do --------------------------------------------------------------------------------------------


def test_a_log_that_a_start_refuses_although_every_record_is_good_is_not_called_healthy() -> None:
    """Offsets jump without a note: no disk does that, only a mistake of ours."""
    disk = SimulatedDisk(1)
    copy = LogFileBuilder(1)
    body = encode_block(1, {envelope.PAYLOAD: [b"x"]})
    names = [topic_section(TopicIdentity(1, "/default/a"))]
    for lsn, base in ((1, 0), (2, 5)):
        copy.add(1, lsn, 0, 0, [*names, wire.RecordSection(1, 0, wire.SectionKind.MESSAGES, 0, 0, base, 0, 1, 0, body)])
    publish_copy(disk, FileHeader(bytes(16), 1, 0, 0, 0, 0), copy)
    before = contents(disk)
    plan = plan_repair(disk)
    assert isinstance(plan.refusal, errors.LogDamaged)
    assert "no repair is known for this" in plan.refusal.message
    assert apply_repair(disk, CLOCK, plan) == []
    assert contents(disk) == before


def test_obsolete_files_are_set_aside_with_the_header_that_named_them() -> None:
    """A recovery died before it removed the original; then the header of its copy, which named it, was hit."""
    drawn = picture("killed")

    async def recover_and_keep_the_original() -> SimulatedDisk:
        disk = drawn.disk()
        await open_small(disk)
        disk.kill()
        disk.replace(drawn.logs()[0], drawn.files[drawn.logs()[0]])
        return disk

    disk = asyncio.run(recover_and_keep_the_original())
    copied = log_name(3)
    assert not plan_repair(disk).is_needed
    disk.flip(copied, 8 * 20)
    disk.flip(copied, 8 * (RECORDS_START + 20))
    plan, set_aside = repair(disk)
    assert {(loss.file, tuple(loss.gaps)) for loss in plan.losses} == {(copied, ())}
    assert sorted(set_aside) == [f"damaged-1-{drawn.logs()[0]}", f"damaged-1-{copied}"]
    log = asyncio.run(open_small(disk))
    assert {key: asyncio.run(read_shard(log, key)) for key in (A, B)} == drawn.acked


def test_a_torn_end_in_its_own_file_is_set_aside_when_the_repair_ends_the_log_before_it() -> None:
    """Alone it is no damage; but the record that closes the log has its number, and stands in a later file."""

    async def write() -> LogImage:
        log = SmallLog()
        await log.open()
        await log.append({A: 1, B: 1})
        await log.append({A: 1, B: 1})
        await log.close()
        await log.open()
        await log.append({A: 1})
        log.kill()
        return log.picture()

    drawn = asyncio.run(write())
    *_, last = drawn.places()
    hit = place_of(drawn, 1, A)
    disk = damaged(drawn, FlippedBit(hit.file, 8 * hit.body.start), FlippedBit(last.file, 8 * last.body.start))
    plan, set_aside = repair(disk)
    assert plan.closing is not None
    assert sorted(set_aside) == [f"damaged-1-{hit.file}", f"damaged-1-{last.file}"]
    assert not plan_repair(disk).is_needed
    log = asyncio.run(open_small(disk))
    assert asyncio.run(read_shard(log, B)) == drawn.acked[B]


def test_a_second_repair_keeps_the_originals_of_the_first() -> None:
    drawn = picture("killed often")
    file = drawn.logs()[1]
    disk = damaged(drawn, FlippedBit(file, 8 * place_of(drawn, 5, A).body.start))
    first = disk.content(file)
    repair(disk)
    mended = disk.content(file)
    disk.flip(file, 8 * (RECORDS_START + 300))
    second = disk.content(file)
    repair(disk)
    assert disk.content(f"damaged-1-{file}") == first
    assert disk.content(f"damaged-2-{file}") == second != mended


def test_periodic_is_the_only_picture_with_promises() -> None:
    """The test of promises relies on this."""
    assert [name for name in LOGS if picture(name).mode is not SyncMode.ALWAYS] == ["periodic"]


async def hole_across_a_checkpoint() -> tuple[SimulatedDisk, list[ShardKey]]:
    """Six shards, one record each; a checkpoint; the same again. Records 5 to 8 have no good header any more."""
    disk = SimulatedDisk(1)
    log = await open_small(disk)
    log.declare_topic(TopicIdentity(1, "/default/a"))
    keys = [ShardKey(1, number) for number in range(6)]
    for life in (b"before", b"behind", b"evidence"):
        for key in keys:
            await log.append([log.batch(log.shard(*key), encode_block(1, {envelope.PAYLOAD: [life]}))])
        if life == b"before":
            await log.checkpoint()
            await log.checkpoint()
    disk.kill()
    (name,) = (name for name in disk.names() if name.startswith("log-") and find_records(disk, name))
    for position, lsn, _ in find_records(disk, name):
        if 5 <= lsn <= 8:
            FlippedBit(name, 8 * (position + 60)).do(disk)
            FlippedBit(name, 8 * (position + wire.HEADER_BYTES + 60)).do(disk)  # nor is its section good by itself
    return disk, keys


def find_records(disk: SimulatedDisk, name: str) -> list[tuple[int, int, int]]:
    return find_headers(read_records(disk, name), RECORDS_START, int(name[4:-4]), 1)


def test_a_hole_across_the_checkpoint_is_noted_where_a_start_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With more notes than one record holds, none may stand at a number that the checkpoint covers."""
    monkeypatch.setattr("icestream.wal.log_repair._SECTIONS_MAX", 1)
    disk, keys = asyncio.run(hole_across_a_checkpoint())
    plan, _ = repair(disk)
    lost = {(gap.key.shard, gap.start) for gap in plan.gaps if gap.state is GapState.LOST}
    assert lost >= {(4, 0), (5, 0), (0, 1), (1, 1)}
    log = asyncio.run(open_small(disk))
    assert [log.shard(*key).assigned >= 3 for key in keys] == [True] * 6
    for key in keys:
        payloads = asyncio.run(read_shard(log, key))
        missing = {offset for offset in range(3) if offset not in payloads}
        assert missing == {offset for shard, offset in lost if shard == key.shard}
        assert all(log.state.gap_at(key, offset) for offset in missing)


def test_a_file_without_header_and_records_may_have_had_any_message() -> None:
    """The first pages of the file are lost: offsets that were acked in it must not be assigned again."""

    async def write() -> tuple[SimulatedDisk, str, int]:
        disk = SimulatedDisk(1)
        log = await open_small(disk)
        log.declare_topic(TopicIdentity(1, "/default/a"))
        (done,) = require_placed(
            await log.append([log.batch(log.shard(*A), encode_block(1, {envelope.PAYLOAD: [b"x"]}))])
        )
        await log.close()
        log = await open_small(disk)
        (done,) = require_placed(
            await log.append([log.batch(log.shard(*A), encode_block(1, {envelope.PAYLOAD: [b"y"]}))])
        )
        assert log.appender.file is not None
        disk.kill()
        return disk, log_name(log.appender.file.number), done.base_offset

    disk, name, offset = asyncio.run(write())
    disk.replace(name, bytes(8192) + disk.content(name)[8192:])
    plan, _ = repair(disk)
    assert [gap.start for loss in plan.losses for gap in loss.unknown] == [offset]
    log = asyncio.run(open_small(disk))
    assert log.shard(*A).assigned > offset + 1
    assert log.state.gap_at(A, offset) is not None


@pytest.mark.parametrize("align", [8, 512, 4096])
def test_truncated_padding_is_harmless(align: int) -> None:
    async def write() -> SimulatedDisk:
        disk = SimulatedDisk(1)
        options = LogOptions(file_bytes=limits.LOG_FILE_BYTES_MIN, message_bytes_max=8000, align_bytes=align,
                             spare_files=0, quota_bytes=2**30)  # fmt: skip
        log = await open_log_on(disk, options, {}, SimulatedClock(), SeededRandomness(1), InlineSink())
        log.declare_topic(TopicIdentity(1, "/default/a"))
        await log.append([log.batch(log.shard(*A), encode_block(1, {envelope.PAYLOAD: [b"x"]}))])
        await log.close()
        return disk

    whole = asyncio.run(write())
    (file,) = survey(whole).files
    assert file.seal is not None
    content, end = whole.content(file.name), file.seal.end_position
    for cut in range(end - min(align, 600), end):
        disk = asyncio.run(write())
        disk.replace(file.name, content[:cut])
        plan, _ = repair(disk)
        log = asyncio.run(open_small(disk))
        lost = [gap for gap in plan.gaps if gap.start == 0]
        assert asyncio.run(read_shard(log, A)) == ({} if lost else {0: b"x"}), cut
        assert not plan_repair(disk).is_needed
        if end - cut <= align - 300:
            assert not lost, "only padding was cut"
