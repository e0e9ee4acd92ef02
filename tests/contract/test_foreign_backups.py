"""Backups and restores of topics whose tables are in other catalogs, as they are: PostgreSQL, Glue, a REST server. What
is restored, PyIceberg's clients of these catalogs read by name.

The REST server is ours, used as another's: SeaweedFS does not register tables (test_table_catalog.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from icestream.catalog.catalog_holds import holds_prefix
from icestream.cli.backup_stores import warehouse_source
from icestream.iceberg.identifier import Identifier
from icestream.model.shard import ShardKey
from icestream.processes.backup_drill import BackupDrill
from icestream.processes.configured_catalog import open_catalog
from icestream.runtime.clock import SystemClock
from icestream.runtime.tasks import InlineOffload
from icestream.settings import Settings
from tests.support import postgres as postgresql
from tests.support.backup_world import ORDERS
from tests.support.catalog_servers import CATALOG, glue_flags, new_name, own_catalog, settings_of, sql_flags
from tests.support.foreign_backup_world import ForeignRestoreWorld, foreign_backup_world
from tests.support.glue_server import REGION
from tests.support.restore_world import BESIDE
from tests.support.topic_lake import TABLE

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyIceberg and what it brings
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@contextlib.asynccontextmanager
async def clients(
    kind: str, request: pytest.FixtureRequest, folder: Path
) -> AsyncIterator[tuple[Settings, Callable[[], Catalog]]]:
    """Our settings of a catalog, and what opens PyIceberg's client of it."""
    warehouse = f"storage.iceberg_config.warehouse=file:{folder / 'warehouse'}"
    if kind == "sql":
        server, name = request.getfixturevalue("postgres_server"), new_name()
        settings = settings_of(*sql_flags(server.uri), f"data_dir={folder}", f"{CATALOG}.name={name}", warehouse)
        login = f"postgresql+psycopg://{postgresql.USER}:{postgresql.PASSWORD}@"
        address = server.uri.replace("postgresql://", login)
        yield settings, lambda: SqlCatalog(name, uri=address, warehouse=f"file:{folder}/t")
    elif kind == "glue":
        uri = request.getfixturevalue("glue")
        settings = settings_of(*glue_flags(uri), f"data_dir={folder}", warehouse)
        keys = {"glue.endpoint": uri, "glue.region": REGION, "glue.access-key-id": "k", "glue.secret-access-key": "s"}
        yield settings, lambda: GlueCatalog("glue", warehouse=f"file:{folder}/t", **keys)
    else:
        async with own_catalog(folder / "warehouse") as uri:
            flags = [f"{CATALOG}.type=rest", f"{CATALOG}.uri={uri}", f"data_dir={folder}"]
            settings = settings_of(*flags, f"storage.iceberg_config.object_store.path={folder / 'warehouse'}")
            yield settings, lambda: RestCatalog("rest", uri=uri)
    gc.collect()  # what was not closed is told here, not to a test that comes later


def rows_of(open_theirs: Callable[[], Catalog], table: Identifier) -> list[tuple[int, bytes]]:
    theirs = open_theirs()
    try:
        rows = theirs.load_table((*table.namespace, table.name)).scan().to_arrow()
    finally:
        theirs.close()
    return sorted(zip(rows["offset"].to_pylist(), rows["payload"].to_pylist(), strict=True))


@pytest.mark.parametrize("backup", ["copy", "reference"])
@pytest.mark.parametrize("kind", ["sql", "glue", "rest"])
async def test_topics_of_another_catalog_are_backed_up_and_restored(
    kind: str, backup: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with clients(kind, request, tmp_path) as (settings, open_theirs):
        tables = open_catalog(settings)
        async with foreign_backup_world(tmp_path, tables) as world:
            with contextlib.suppress(Exception):  # of the test before, in a server that lives longer
                await tables.drop(TABLE)
            root = await world.back_up_orders(kind=backup)
            assert (root.state, root.incomplete) == ("complete", [])
            assert await world.verify(root.id) == []
            tag, loaded = f"icestream-backup-{root.id}", await tables.load(TABLE)
            is_held = backup == "reference"
            assert (tag in loaded.metadata["refs"]) is is_held
            assert bool(await world.node.store.list_all(holds_prefix(loaded.uuid or ""))) is is_held
            # As the command reads the files that a backup names: those of the warehouse of another catalog too.
            source = warehouse_source(settings)
            drill = BackupDrill(
                world.stored(), source, SystemClock(), InlineOffload(), node="n", directory=tmp_path / "d"
            )
            report = await drill.run(root.id)
            assert (report.findings, report.outcome, report.messages) == ([], "passed", 10)

            restores = ForeignRestoreWorld(world, settings=settings)
            beside = await restores.restore(root)
            await world.publish(3)
            replaced = await restores.restore(root, ORDERS, is_in_place=True)
            for restored, name in ((beside, BESIDE), (replaced, ORDERS)):
                end = world.node.broker.storage.shard_stream(ShardKey(restored.id, 0)).visible
                assert end == restored.next_offsets[0]
                assert await restores.next_offset(restored.id, name, end) == end
            expected = [(offset, b"m%d" % offset) for offset in range(10)]
            # In a thread: the REST server is in this loop.
            assert await asyncio.to_thread(rows_of, open_theirs, TABLE) == expected
            other = Identifier(TABLE.namespace, BESIDE.name)
            assert await asyncio.to_thread(rows_of, open_theirs, other) == expected
            names = {name.name for name in await tables.list_tables(TABLE.namespace)}
            assert names >= {"orders", "orders_restored", f"orders__replaced_{replaced.id}"}
            for name in names:
                await tables.drop(Identifier(TABLE.namespace, name))
        await tables.close()
