"""Hazard 10, with 28 and 47: pointers, lease, runs and rounds of many tables move in one transaction, or none does."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from icestream import error_codes, errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog import Catalog
from icestream.catalog.catalog_records import TableRecord
from icestream.catalog.plans import commit_plans
from icestream.catalog.plans.commit_plans import PlannedChange
from icestream.catalog.topic_rules.binding import Binding, CommittedRound
from icestream.catalog.topic_rules.commit_rules import CommitRequest
from icestream.catalog.topic_rules.offset_run import OffsetRun
from icestream.iceberg.identifier import Identifier
from icestream.metadata.entry import Entry
from icestream.runtime.simulated_disk import SimulatedDisk
from tests.support.jitter_store import JitterStore
from tests.support.losing_store import LosingStore
from tests.support.metadata_machine import MetadataMachine
from tests.support.tables import UUID
from tests.support.topic_tables import ENVELOPE, LEASE, appending, claim
from tests.support.warehouse import NS, TABLE, World

pytestmark = pytest.mark.asyncio

LEASED = b'{"epoch":%d}' % LEASE


def setting(name: str, value: str) -> CommitRequest:
    return CommitRequest([], [{"action": "set-properties", "updates": {name: value}}])


async def topics(world: World, count: int) -> list[Identifier]:
    """Tables of so many topics, all at offset 0."""
    await world.store.put(catalog_keys.LEASE, LEASED)
    made = [await world.with_table(f"t{number:03d}", schema=ENVELOPE) for number in range(count)]
    for number, identifier in enumerate(made):
        await world.catalog.topics.bind(identifier, f"/default/t{number}", number + 1, {0: (0, 0)})
    return made


async def a_round(catalog: Catalog, tables: list[Identifier], number: int) -> dict[Identifier, CommitRequest]:
    """The offsets [10 (n - 1), 10 n) of each table."""
    asked = {}
    for place, identifier in enumerate(tables):
        state = (await catalog.commits.load(identifier)).state
        requirement = claim(number, (0, 0, 10 * number - 10, 10 * number), topic_id=place + 1)
        asked[identifier] = CommitRequest([requirement], appending(state, 1_000 + number))
    return asked


async def committed(catalog: Catalog, tables: list[Identifier]) -> list[int]:
    found = [(await catalog.commits.load(identifier)).record.binding for identifier in tables]
    return [binding.committed()[0] for binding in found if binding is not None]


async def test_hazard_10_a_round_of_many_tables_is_one_transaction() -> None:
    world = World()
    tables = await topics(world, 20)
    before = await world.store.revision()
    done = await world.catalog.commits.commit_all(await a_round(world.catalog, tables, 1))
    assert await world.store.revision() == before + 1
    assert {one.table.current_snapshot_id for one in done.values()} == {1_001}
    assert await committed(world.another(9), tables) == [10] * 20
    again = await world.catalog.commits.commit_all(await a_round(world.catalog, tables, 1))
    assert {one.repeated for one in again.values()} == {1_001}
    assert await world.store.revision() == before + 1


async def test_hazard_10_a_lease_that_ended_between_plan_and_transaction_refuses() -> None:
    """The driver is deposed after the round was judged: the transaction compares the lease."""
    world = World(LosingStore(JitterStore(1)))
    tables = await topics(world, 3)
    asked = await a_round(world.catalog, tables, 1)
    files = world.metadata_files()
    assert isinstance(world.store, LosingStore)
    behind = world.store.behind
    submit = behind.submit

    async def deposed(*given: Any) -> Any:
        behind.submit = submit  # type: ignore[method-assign]
        await behind.put(catalog_keys.LEASE, b'{"epoch":6}')
        return await submit(*given)

    behind.submit = deposed  # type: ignore[method-assign]
    with pytest.raises(errors.CommitConflict) as refused:
        await world.catalog.commits.commit_all(asked)
    assert {one["reason"] for one in refused.value.details["tables"]} == {"stale_pipeline"}
    assert await committed(world.another(9), tables) == [0] * 3
    assert world.metadata_files() == files, "nothing is left of it"


async def test_hazard_10_a_lease_that_is_renewed_does_not_disturb() -> None:
    world = World()
    tables = await topics(world, 2)
    asked = await a_round(world.catalog, tables, 1)
    await world.store.put_with_ttl(catalog_keys.LEASE, LEASED, 60_000)
    await world.catalog.commits.commit_all(asked)
    assert await committed(world.catalog, tables) == [10, 10]


@pytest.mark.parametrize("end", ["kill", "power loss"])
async def test_hazard_10_a_crash_at_any_step_of_a_commit_over_tables_leaves_all_or_nothing(end: str) -> None:
    """The warehouse's steps are those of hazard 11; here the steps of the store."""
    outcomes = set()
    step = 0
    while True:
        machine, disk = MetadataMachine(step, log_file_bytes=2**17), SimulatedDisk(step)
        world = World(await machine.start(), disk)
        tables = await topics(world, 5)
        asked = await a_round(world.catalog, tables, 1)
        machine.disk.crash_after(step)
        survived = await machine.survives(_drive(world.catalog, asked))
        await machine.end(end)
        disk.kill()
        world = World(await machine.start(), disk)
        found = set(await committed(world.catalog, tables))
        assert len(found) == 1, "some tables are committed and some are not"
        outcomes |= found
        await machine.kill()
        if survived:
            break
        step += 1
    assert outcomes == {0, 10}


async def _drive(catalog: Catalog, asked: dict[Identifier, CommitRequest]) -> None:
    await catalog.commits.commit_all(asked)


async def test_hazard_47_after_an_ambiguous_answer_positions_tell_what_is_there() -> None:
    """204 has no body: the driver reads the positions of all tables, and the same round again is a repeat."""
    for how, expected in (("done", 1_001), ("never", None)):
        store = LosingStore(JitterStore(1))
        world = World(store)
        tables = await topics(world, 3)
        asked = await a_round(world.catalog, tables, 1)
        store.lose(how)

        async def goes_down(store: LosingStore = store) -> None:
            store.is_down = True

        store.after = goes_down
        call = asyncio.ensure_future(world.catalog.commits.commit_all(asked))
        while not call.done():
            await asyncio.sleep(0)
            world.clock.advance(1)
        with pytest.raises(errors.OutcomeUnknown):
            await call
        store.is_down = False
        driver = world.another(9)
        assert await committed(driver, tables) == ([10] * 3 if expected else [0] * 3)
        again = await driver.commits.commit_all(await a_round(driver, tables, 1))
        assert {one.repeated for one in again.values()} == {expected}
        assert await committed(driver, tables) == [10] * 3


async def test_hazard_47_a_foreign_commit_beside_a_round_is_named_alone() -> None:
    world = World()
    tables = await topics(world, 3)
    asked = await a_round(world.catalog, tables, 1)
    state = (await world.catalog.commits.load(tables[1])).state
    await world.catalog.commits.commit(tables[1], CommitRequest([], appending(state, 7)))
    with pytest.raises(errors.CommitConflict) as refused:
        await world.catalog.commits.commit_all(asked)
    assert [one["table"] for one in refused.value.details["tables"]] == ["ns.t001"]
    del asked[tables[1]]
    await world.catalog.commits.commit_all(asked)
    assert await committed(world.catalog, tables) == [10, 0, 10]


# --- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 3])
async def test_eight_writers_on_one_table_lose_nothing(nodes: int) -> None:
    world = World(JitterStore(nodes))
    await world.with_table()
    catalogs = [world.another(100 + number) for number in range(nodes)]

    async def write(writer: int) -> None:
        for number in range(10):
            while True:
                try:
                    await catalogs[writer % nodes].commits.commit(TABLE, setting(f"w{writer}-{number}", "done"))
                    break
                except errors.CommitConflict:
                    continue

    await asyncio.gather(*(write(writer) for writer in range(8)))
    found = await world.another(9).tables.load(TABLE)
    assert sum(name.startswith("w") and value == "done" for name, value in found.table.properties.items()) == 80
    assert found.location.rsplit("/", 1)[1].startswith("00080-"), "each commit is one version"
    kept = {entry["metadata-file"] for entry in found.table.metadata_log} | {found.location}
    assert set(world.metadata_files()) == kept, "no file is left of an attempt that failed"
    assert all(len(one.tables._runner.locks) == 0 for one in catalogs)


async def test_old_files_go_when_the_table_says_so() -> None:
    world = World()
    await world.with_table()
    limits_ = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
    await world.catalog.commits.commit(TABLE, CommitRequest([], [{"action": "set-properties", "updates": limits_}]))
    reader = world.another(9)
    for number in range(5):
        await world.catalog.commits.commit(TABLE, setting("n", str(number)))
        assert (await reader.tables.load(TABLE)).table.properties["n"] == str(number)
        world.clock.advance(600)
        await world.upkeep()
    assert len(world.metadata_files()) == 3 + 4, "nothing goes within the hour"
    world.clock.advance(1_200)
    await world.upkeep()
    assert len(world.metadata_files()) == 3 + 3
    world.clock.advance(3_600)
    await world.upkeep()
    assert len(world.metadata_files()) == 3
    assert (await world.another(8).tables.load(TABLE)).table.properties["n"] == "4"


async def test_a_reader_whose_file_is_gone_asks_for_the_pointer_again() -> None:
    world = World()
    await world.with_table()
    first = await world.store.get(catalog_keys.relation_key(TABLE))
    limits_ = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    await world.catalog.commits.commit(TABLE, CommitRequest([], [{"action": "set-properties", "updates": limits_}]))
    await world.catalog.commits.commit(TABLE, setting("a", "b"))
    world.clock.advance(3_600)
    await world.upkeep()
    get, answers = world.store.get, [first]

    async def late(key: str) -> Entry | None:
        return answers.pop() if answers else await get(key)

    world.store.get = late  # type: ignore[method-assign]
    assert (await world.another(9).tables.load(TABLE)).table.properties["a"] == "b"


# --- what fits --------------------------------------------------------------------------------------------------------


def full_record(shards: int) -> TableRecord:
    """A table that remembers as much as it can."""
    runs = {shard: (OffsetRun(2**40, 2**61, 2**61 + 1),) for shard in range(shards)}
    rounds = tuple(CommittedRound(bytes([number] * 16), 2**62, 2**31) for number in range(limits.CATALOG_ROUNDS_KEPT))
    location = "file:/warehouse/" + "x" * 200 + "/metadata/00000-" + UUID + ".metadata.json"
    return TableRecord(UUID, location, 10**6, Binding("/default/orders", 1, runs, 7, rounds))


def planned(count: int, shards: int) -> Any:
    record = full_record(shards)
    entry = Entry(catalog_records.encode(record), 1, 1, 1, 0)
    changes = [
        PlannedChange(Identifier(NS, f"table-{number}"), entry, record, record.binding, True) for number in range(count)
    ]
    return commit_plans.commit(
        changes, commit_plans.DriverLeaseEntry("/pipeline/lease/" + "f" * 16, Entry(LEASED, 1, 1, 1, 0))
    )


async def test_hazard_10_a_round_of_200_tables_fits_one_transaction() -> None:
    made = planned(200, 8)
    assert (len(made.comparisons), len(made.operations)) == (201, 200)


async def test_hazard_28_a_table_of_the_most_shards_fits_its_key() -> None:
    runs = tuple(OffsetRun(epoch, 2**40 + epoch, 2**40 + epoch, epoch < 3) for epoch in range(4))
    record = full_record(limits.SHARDS_PER_TOPIC_MAX)
    assert record.binding is not None
    many = msgspec.structs.replace(
        record,
        binding=msgspec.structs.replace(record.binding, runs=dict.fromkeys(range(limits.SHARDS_PER_TOPIC_MAX), runs)),
    )
    assert len(catalog_records.encode(many)) <= limits.METADATA_VALUE_BYTES_MAX
    assert catalog_records.decode_relation("", Entry(catalog_records.encode(many), 1, 1, 1, 0)) == many


async def test_hazard_10_what_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(errors.InvalidInput, match="commit to 501 tables exceeds the limit of 500"):
        planned(limits.CATALOG_TRANSACTION_TABLES_MAX + 1, 1)
    with pytest.raises(errors.InvalidInput, match="at most 1048576 fit"):
        planned(450, 64)
    world = World()
    with pytest.raises(errors.InvalidInput, match="commit to 0 tables"):
        await world.catalog.commits.commit_all({})


async def test_hazard_10_a_record_that_is_not_one_is_told_as_damage() -> None:
    world = World()
    await world.with_table()
    key = catalog_keys.relation_key(TABLE)
    for value in (b"", b"\xff", catalog_records.encode(full_record(1))[:-3], msgspec.msgpack.encode({"type": "index"})):
        await world.store.put(key, value)
        with pytest.raises(errors.MetadataDamaged, match="register the table again") as damaged:
            await world.catalog.tables.load(TABLE)
        assert error_codes.iceberg_error(damaged.value)[0] == 422
    await world.store.put(catalog_keys.namespace_key(NS), b"[]")
    with pytest.raises(errors.MetadataDamaged):
        await world.catalog.namespaces.load(NS)
