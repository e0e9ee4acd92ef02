"""Backups, archives and restores against what clients were told, over histories by chance.

Every message that was acked until the cut is there once, at its offset, with equal bytes; DuckDB and PyIceberg agree;
`verify` is clean; consumers resume where they were. Clients publish and ack, the pipeline commits and compacts, engines
delete rows, retention and expiry remove files at once, policies and topics change, and the broker is stopped or ends as
by kill -9, between any two steps of a backup. The backup, each pass of the archive and the restore end before any of
their effects.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from icestream.backup.backup_root import BackupRoot
from icestream.backup.encryption import BackupKey
from icestream.backup.stored_backups import StoredBackups
from icestream.iceberg.identifier import Identifier
from icestream.model.topic_name import TopicName
from icestream.processes.point_in_time import CutTime, base_for, lies_before
from icestream.processes.restore_run import RestoreEffect
from tests.support.archive_world import archive_world
from tests.support.backup_history import BackupHistory, Moment, consumed, crash_at
from tests.support.backup_world import ORDERS, Crash
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.restore_world import RestoreWorld

pytestmark = pytest.mark.asyncio
KEY = BackupKey(bytes(range(32)))
LONG = [pytest.param(seed, marks=pytest.mark.chaos) for seed in range(6, 200)]


class Restored:
    """A restore of the topic, which ends before an effect by chance and is done again."""

    def __init__(self, history: BackupHistory, root: BackupRoot, stored: StoredBackups) -> None:
        self.history = history
        self.root = root
        self.stored = stored
        self.name = TopicName("default", f"restored{history.chance.randrange(1_000_000)}")

    async def run(self) -> None:
        chance = self.history.chance
        is_in_place = chance.random() < 0.3
        if is_in_place:
            await self.history.world.node.broker.create_topic(self.name)
        world = RestoreWorld(self.history.world)
        options = {"key": self.history.key, "is_in_place": is_in_place, "stored": self.stored}
        effect = chance.choice([None, *RestoreEffect])
        try:
            restored = await world.restore(
                self.root, self.name, on_effect=crash_at(effect, chance.randint(0, 1)), **options
            )
        except Crash:
            if chance.random() < 0.3:
                await self.history.world.crash()
                self.history.reader = None
            restored = await RestoreWorld(self.history.world).restore(self.root, self.name, **options)
        self.table = restored.table

    async def check(self, least: dict[int, bytes], most: dict[int, bytes]) -> None:
        """The rows are at least and at most these, the same for both engines."""
        world = RestoreWorld(self.history.world)
        by_pyiceberg: list[tuple[int, bytes]] = []
        by_duckdb: list[tuple[int, bytes]] = []
        if self.table:
            location = (await world.catalog.tables.load(Identifier(("default",), self.name.name))).location
            scanned = StaticTable.from_metadata(location).scan(selected_fields=("offset", "payload")).to_arrow()
            by_pyiceberg = sorted(zip(scanned["offset"].to_pylist(), scanned["payload"].to_pylist(), strict=True))
            with duckdb_with_iceberg() as duckdb:
                query = f"SELECT \"offset\", payload FROM iceberg_scan('{location}') ORDER BY 1"
                by_duckdb = duckdb.sql(query).fetchall()
        assert by_duckdb == by_pyiceberg, "engines agree"
        rows = dict(by_pyiceberg)
        assert len(rows) == len(by_pyiceberg), "each offset once"
        assert {offset: rows.get(offset) for offset in least} == least, "every acked message is there"
        assert {offset: most.get(offset) for offset in rows} == rows, "and nothing else"

    def cursor(self) -> frozenset[int]:
        """The offsets that the restored subscription does not get again."""
        return consumed(self.history.world.node.broker, self.name)


def without(messages: dict[int, bytes], removed: frozenset[int]) -> dict[int, bytes]:
    return {offset: payload for offset, payload in messages.items() if offset not in removed}


@pytest.mark.parametrize("seed", [*range(6), *LONG])
async def test_every_acked_message_comes_back_once_whatever_happens_and_ends(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    key = KEY if seed % 3 == 0 else None
    async with archive_world(tmp_path, key) as archive:
        history = BackupHistory(archive, chance, key)
        await history.begin()
        for _ in range(chance.randint(10, 30)):
            await history.step()
        await archive.new_run().run_pass()
        world = history.world
        for backup in history.backups:
            assert await world.verify(backup.root.id, key=key) == []
        if history.reader is not None:
            history.reader.leave()
        # A backup by itself.
        backup = chance.choice(history.backups)
        restored = Restored(history, backup.root, world.stored(key))
        await restored.run()
        await restored.check(
            without(backup.before.messages, backup.after.removed),
            without(backup.after.messages, backup.before.removed),
        )
        assert restored.cursor() <= backup.after.acked
        assert restored.cursor() >= backup.before.flushed - frozenset(range(len(backup.after.messages), 1 << 20))
        # Any time behind the first backup, by the archive.
        await restore_to(history, chance.choice([moment for moment in history.moments if is_usable(history, moment)]))


def is_usable(history: BackupHistory, moment: Moment) -> bool:
    return any(lies_before(backup.root, CutTime(moment.time_us)) for backup in history.backups)


async def restore_to(history: BackupHistory, moment: Moment) -> None:
    base = base_for([backup.root for backup in history.backups], CutTime(moment.time_us))
    (of_base,) = [backup for backup in history.backups if backup.root.id == base.id]
    past = await history.archive.past(base, moment.time_us)
    restored = Restored(history, past.root, past.stored)
    await restored.run()
    # Rows that were removed behind the base are there again: the log does not know of it.
    await restored.check(
        without(moment.messages, of_base.after.removed), without(moment.messages, of_base.before.removed)
    )
    assert restored.cursor() <= moment.acked
    policies = history.world.node.broker.topics.get(restored.name).record.policies
    names = {topic.name for topic in past.root.topics if not topic.name.startswith("/system")}
    if not history.restarts:  # what a broker that was started again had not archived is dated by its next state
        assert moment.flushed <= restored.cursor()
        assert policies.max_producers == moment.policy + 10
        assert names == moment.topics
    assert str(ORDERS) in names
