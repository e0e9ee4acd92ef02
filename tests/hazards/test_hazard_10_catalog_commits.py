"""Hazard 10, with 28 and 47: pointers, lease, runs and rounds of many tables move in one transaction, or none does."""

from __future__ import annotations

import asyncio
import random
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
from icestream.runtime.clock import SimulatedClock
from icestream.runtime.simulated_disk import SimulatedDisk
from tests.support.faulty_store import FaultyStore
from tests.support.metadata_machine import MetadataMachine
from tests.support.tables import UUID
from tests.support.topic_tables import ENVELOPE, LEASE, appending, claim
from tests.support.warehouse import NS, TABLE, CatalogWorld

pytestmark = pytest.mark.asyncio

LEASED = b'{"epoch":%d}' % LEASE


def setting(name: str, value: str) -> CommitRequest:
    return CommitRequest([], [{"action": "set-properties", "updates": {name: value}}])


async def topics(world: CatalogWorld, count: int) -> list[Identifier]:
    """Tables of so many topics, all at offset 0."""
    await world.store.put(catalog_keys.LEASE, LEASED)
    identifiers = [await world.with_table(f"t{number:03d}", schema=ENVELOPE) for number in range(count)]
    for number, identifier in enumerate(identifiers):
        await world.catalog.topics.bind(identifier, f"/default/t{number}", number + 1, {0: (0, 0)})
    return identifiers


async def a_round(catalog: Catalog, tables: list[Identifier], number: int) -> dict[Identifier, CommitRequest]:
    """The offsets [10 (n - 1), 10 n) of each table."""
    requests = {}
    for place, identifier in enumerate(tables):
        state = (await catalog.commits.load(identifier)).state
        requirement = claim(number, (0, 0, 10 * number - 10, 10 * number), topic_id=place + 1)
        requests[identifier] = CommitRequest([requirement], appending(state, 1_000 + number))
    return requests


async def committed(catalog: Catalog, tables: list[Identifier]) -> list[int]:
    bindings = [(await catalog.commits.load(identifier)).record.binding for identifier in tables]
    return [binding.committed()[0] for binding in bindings if binding is not None]


async def test_hazard_10_a_round_of_many_tables_is_one_transaction() -> None:
    world = CatalogWorld()
    tables = await topics(world, 20)
    before = await world.store.revision()
    done = await world.catalog.commits.commit_all(await a_round(world.catalog, tables, 1))
    assert await world.store.revision() == before + 1
    assert {outcome.table.current_snapshot_id for outcome in done.values()} == {1_001}
    assert await committed(world.another(9), tables) == [10] * 20
    again = await world.catalog.commits.commit_all(await a_round(world.catalog, tables, 1))
    assert {outcome.repeated for outcome in again.values()} == {1_001}
    assert await world.store.revision() == before + 1


async def test_hazard_10_a_lease_that_ended_between_plan_and_transaction_refuses() -> None:
    """The driver is deposed after the round was judged: the transaction compares the lease."""
    world = CatalogWorld(FaultyStore(SimulatedClock(), delay=random.Random(1)))
    tables = await topics(world, 3)
    requests = await a_round(world.catalog, tables, 1)
    files = world.metadata_files()
    assert isinstance(world.store, FaultyStore)
    world.store.before_txn = lambda: world.store.put(catalog_keys.LEASE, b'{"epoch":6}')
    with pytest.raises(errors.CommitConflict) as refused:
        await world.catalog.commits.commit_all(requests)
    assert {table["reason"] for table in refused.value.details["tables"]} == {"stale_pipeline"}
    assert await committed(world.another(9), tables) == [0] * 3
    assert world.metadata_files() == files, "no file is left of the refused commit"


async def test_hazard_10_a_lease_that_is_renewed_does_not_disturb() -> None:
    world = CatalogWorld()
    tables = await topics(world, 2)
    requests = await a_round(world.catalog, tables, 1)
    await world.store.put_with_ttl(catalog_keys.LEASE, LEASED, 60_000)
    await world.catalog.commits.commit_all(requests)
    assert await committed(world.catalog, tables) == [10, 10]


@pytest.mark.parametrize("end", ["kill", "power loss"])
async def test_hazard_10_a_crash_at_any_step_of_a_multi_table_commit_is_all_or_nothing(end: str) -> None:
    """The warehouse's steps are those of hazard 11; here the steps of the store."""
    outcomes = set()
    step = 0
    while True:
        machine, disk = MetadataMachine(step, log_file_bytes=2**17), SimulatedDisk(step)
        world = CatalogWorld(await machine.start(), disk)
        tables = await topics(world, 5)
        requests = await a_round(world.catalog, tables, 1)
        machine.disk.crash_after(step)
        survived = await machine.survives(_drive(world.catalog, requests))
        await machine.end(end)
        disk.kill()
        world = CatalogWorld(await machine.start(), disk)
        offsets = set(await committed(world.catalog, tables))
        assert len(offsets) == 1, "some tables are committed and some are not"
        outcomes |= offsets
        await machine.kill()
        if survived:
            break
        step += 1
    assert outcomes == {0, 10}


async def _drive(catalog: Catalog, requests: dict[Identifier, CommitRequest]) -> None:
    await catalog.commits.commit_all(requests)


async def test_hazard_47_after_an_ambiguous_reply_the_positions_tell_the_outcome() -> None:
    """204 has no body: the driver reads the positions of all tables, and the same round again is a repeat."""
    for how, expected in (("done", 1_001), ("never", None)):
        store = FaultyStore(SimulatedClock(), delay=random.Random(1))
        world = CatalogWorld(store)
        tables = await topics(world, 3)
        requests = await a_round(world.catalog, tables, 1)
        store.lose(how)

        async def goes_down(store: FaultyStore = store) -> None:
            store.is_down = True

        store.after_lost = goes_down
        call = asyncio.ensure_future(world.catalog.commits.commit_all(requests))
        while not call.done():
            await asyncio.sleep(0)
            world.clock.advance(1)
        with pytest.raises(errors.OutcomeUnknown):
            await call
        store.is_down = False
        driver = world.another(9)
        assert await committed(driver, tables) == ([10] * 3 if expected else [0] * 3)
        again = await driver.commits.commit_all(await a_round(driver, tables, 1))
        assert {outcome.repeated for outcome in again.values()} == {expected}
        assert await committed(driver, tables) == [10] * 3


async def test_hazard_47_a_foreign_commit_beside_a_round_is_named_alone() -> None:
    world = CatalogWorld()
    tables = await topics(world, 3)
    requests = await a_round(world.catalog, tables, 1)
    state = (await world.catalog.commits.load(tables[1])).state
    await world.catalog.commits.commit(tables[1], CommitRequest([], appending(state, 7)))
    with pytest.raises(errors.CommitConflict) as refused:
        await world.catalog.commits.commit_all(requests)
    assert [table["table"] for table in refused.value.details["tables"]] == ["ns.t001"]
    del requests[tables[1]]
    await world.catalog.commits.commit_all(requests)
    assert await committed(world.catalog, tables) == [10, 0, 10]


# --- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 3])
async def test_eight_writers_on_one_table_lose_nothing(nodes: int) -> None:
    world = CatalogWorld(FaultyStore(SimulatedClock(), delay=random.Random(nodes)))
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
    loaded = await world.another(9).tables.load(TABLE)
    assert sum(name.startswith("w") and value == "done" for name, value in loaded.table.properties.items()) == 80
    assert loaded.location.rsplit("/", 1)[1].startswith("00080-"), "each commit is one version"
    referenced = {entry["metadata-file"] for entry in loaded.table.metadata_log} | {loaded.location}
    assert set(world.metadata_files()) == referenced, "no file is left of an attempt that failed"
    assert all(len(catalog.tables._runner.locks) == 0 for catalog in catalogs)


async def test_old_metadata_files_are_removed_if_the_table_properties_say_so() -> None:
    world = CatalogWorld()
    await world.with_table()
    limits_ = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
    await world.catalog.commits.commit(TABLE, CommitRequest([], [{"action": "set-properties", "updates": limits_}]))
    reader = world.another(9)
    for number in range(5):
        await world.catalog.commits.commit(TABLE, setting("n", str(number)))
        assert (await reader.tables.load(TABLE)).table.properties["n"] == str(number)
        world.clock.advance(600)
        await world.clean_up()
    assert len(world.metadata_files()) == 3 + 4, "no file is removed within the hour"
    world.clock.advance(1_200)
    await world.clean_up()
    assert len(world.metadata_files()) == 3 + 3
    world.clock.advance(3_600)
    await world.clean_up()
    assert len(world.metadata_files()) == 3
    assert (await world.another(8).tables.load(TABLE)).table.properties["n"] == "4"


async def test_a_reader_whose_file_was_removed_loads_the_pointer_again() -> None:
    world = CatalogWorld()
    await world.with_table()
    first = await world.store.get(catalog_keys.relation_key(TABLE))
    limits_ = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    await world.catalog.commits.commit(TABLE, CommitRequest([], [{"action": "set-properties", "updates": limits_}]))
    await world.catalog.commits.commit(TABLE, setting("a", "b"))
    world.clock.advance(3_600)
    await world.clean_up()
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
    transaction = planned(200, 8)
    assert (len(transaction.comparisons), len(transaction.operations)) == (201, 200)


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


async def test_hazard_10_oversized_transactions_are_refused_with_the_sizes() -> None:
    with pytest.raises(errors.InvalidInput, match="commit to 501 tables exceeds the limit of 500"):
        planned(limits.CATALOG_TRANSACTION_TABLES_MAX + 1, 1)
    with pytest.raises(errors.InvalidInput, match="limit 1048576"):
        planned(450, 64)
    world = CatalogWorld()
    with pytest.raises(errors.InvalidInput, match="commit to 0 tables"):
        await world.catalog.commits.commit_all({})


async def test_hazard_10_a_malformed_record_is_reported_as_damage() -> None:
    world = CatalogWorld()
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
