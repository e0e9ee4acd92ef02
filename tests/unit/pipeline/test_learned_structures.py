"""The structures that a driver learns: stored before rows refer to them, over the version that they were made from."""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.catalog import catalog_keys
from icestream.metadata.store import MemoryStore
from icestream.mqtt.learned_structure import LearnedStructure
from icestream.pipeline.tables.learned_structures import LearnedStructures
from icestream.runtime.clock import SimulatedClock
from tests.support.faulty_store import FaultyStore

pytestmark = pytest.mark.asyncio
TOPIC_ID, TOPIC = 7, "/mqtt/messages"
KEY = catalog_keys.structure_key(TOPIC_ID)


async def store_with_table(key: str = catalog_keys.topic_key(TOPIC_ID)) -> MemoryStore:
    store = MemoryStore(SimulatedClock())
    await store.put(key, b"{}")
    return store


async def opened(store: MemoryStore) -> LearnedStructures:
    structures = LearnedStructures(store)
    await structures.load(TOPIC_ID)
    return structures


def version_of(structures: LearnedStructures) -> int:
    return LearnedStructure.decode(structures.target(TOPIC_ID, TOPIC).structure).version


@pytest.mark.parametrize("key", [catalog_keys.topic_key(TOPIC_ID), catalog_keys.foreign_table_key(TOPIC_ID)])
async def test_a_learned_version_is_stored_and_loaded_by_the_next_driver(key: str) -> None:
    store = await store_with_table(key)
    structures = await opened(store)
    assert structures.target(TOPIC_ID, TOPIC).native_topic == "mqtt/messages"
    assert version_of(structures) == 0
    await structures.learn(TOPIC_ID, ["a/b", "a/c"])
    await structures.learn(TOPIC_ID, ["a/b"])
    assert version_of(structures) == 1, "nothing new, no version"
    await structures.learn(TOPIC_ID, ["x"])
    follower = await opened(store)
    assert follower.target(TOPIC_ID, TOPIC) == structures.target(TOPIC_ID, TOPIC)
    assert version_of(follower) == 2


async def test_of_two_drivers_the_first_wins_and_the_other_learns_from_it() -> None:
    store = await store_with_table()
    first, second = await opened(store), await opened(store)
    await first.learn(TOPIC_ID, ["a/b"])
    await second.learn(TOPIC_ID, ["x/y"])
    await second.load(TOPIC_ID)
    assert second.target(TOPIC_ID, TOPIC) == first.target(TOPIC_ID, TOPIC)
    await second.learn(TOPIC_ID, ["x/y"])
    assert version_of(second) == 2


async def test_nothing_is_stored_for_a_topic_without_a_table() -> None:
    store = MemoryStore(SimulatedClock())
    structures = await opened(store)
    await structures.learn(TOPIC_ID, ["a/b"])
    assert await store.get(KEY) is None


async def test_a_record_that_cannot_be_read_is_kept_and_rows_get_no_stream() -> None:
    store = await store_with_table()
    await store.put(KEY, b"of a later release")
    structures = await opened(store)
    assert structures.target(TOPIC_ID, TOPIC).structure == b""
    await structures.learn(TOPIC_ID, ["a/b"])
    entry = await store.get(KEY)
    assert entry is not None
    assert entry.value == b"of a later release"


async def test_a_store_that_fails_stops_no_round() -> None:
    store = FaultyStore(SimulatedClock())
    await store.put(catalog_keys.topic_key(TOPIC_ID), b"{}")
    structures = await opened(store)
    store.errors.append(errors.StorageUnavailable("away"))
    await structures.learn(TOPIC_ID, ["a/b"])
    await structures.load(TOPIC_ID)
    assert version_of(structures) == 0
    await structures.learn(TOPIC_ID, ["a/b"])
    assert version_of(structures) == 1


@pytest.mark.parametrize("fate", ["done", "never", "late"])
async def test_a_version_whose_outcome_is_unknown_is_read_back(fate: str) -> None:
    store = FaultyStore(SimulatedClock())
    await store.put(catalog_keys.topic_key(TOPIC_ID), b"{}")
    structures = await opened(store)
    store.lose(fate)
    await structures.learn(TOPIC_ID, ["a/b"])
    await structures.load(TOPIC_ID)
    assert version_of(structures) == (1 if fate == "done" else 0)
    # One that arrives late was made from the version that the next one is made from: one of both is refused.
    await store.deliver()
    await structures.learn(TOPIC_ID, ["x"])
    await structures.load(TOPIC_ID)
    await structures.learn(TOPIC_ID, ["x"])
    assert version_of(structures) == (1 if fate == "never" else 2)
