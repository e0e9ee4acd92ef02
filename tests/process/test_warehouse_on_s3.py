"""A broker whose embedded catalog keeps its tables in S3: real processes, a real store, kill -9."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

from icestream import error_codes, errors
from icestream.catalogs.table_catalog import CommitDone, LoadedTable, TableCatalog, TableChange
from icestream.cluster.force_new_cluster import force_new_cluster
from icestream.iceberg.identifier import Identifier
from icestream.processes.configured_catalog import open_catalog
from icestream.runtime.clock import SystemClock
from icestream.runtime.randomness import SystemRandomness
from tests.contract.test_table_catalog import ASKED, appending, snapshots
from tests.support.catalog_servers import CATALOG, new_name, s3_flags, settings_of
from tests.support.lake_run import LakeRun, children_of, get, until
from tests.support.lakehouse import duckdb_with_iceberg
from tests.support.seaweed import BUCKET, SECRET, Seaweed
from tests.support.secret_files import secret_file
from tests.support.serve_process import ServeProcess

TABLE = Identifier(("shop",), "orders")


def arguments(server: Seaweed, root: str) -> list[str]:
    flags = [*s3_flags(server), f"storage.iceberg_config.warehouse=s3://{BUCKET}/{root}"]
    return [part for flag in flags for part in ("--set", flag)]


def catalog_at(port: int) -> TableCatalog:
    return open_catalog(settings_of(f"{CATALOG}.uri=http://127.0.0.1:{port}", f"ports.lake={port}"))


async def create_table(port: int) -> LoadedTable:
    catalog = catalog_at(port)
    await catalog.create_namespace(TABLE.namespace, {})
    await catalog.create(TABLE, ASKED)
    outcome = await catalog.commit(TABLE, appending(await catalog.load(TABLE), 1))
    assert isinstance(outcome, CommitDone)
    await catalog.close()
    assert outcome.table is not None
    return outcome.table


async def committed(port: int, number: int) -> list[int]:
    catalog = catalog_at(port)
    change: TableChange = appending(await catalog.load(TABLE), number)
    assert isinstance(await catalog.commit(TABLE, change), CommitDone)
    ids = snapshots(await catalog.load(TABLE))
    await catalog.close()
    return ids


def test_tables_in_s3_survive_their_processes_and_keys_are_not_in_their_command(
    seaweed_server: Seaweed, tmp_path: Path
) -> None:
    root = new_name("own")
    with LakeRun(tmp_path, *arguments(seaweed_server, root)) as run:
        run.until_api()
        table = asyncio.run(create_table(run.lake_port))
        assert str(table.metadata_location).startswith(f"s3://{BUCKET}/{root}/shop/orders")
        assert SECRET not in Path(f"/proc/{run.lake_pid}/cmdline").read_text()
        status, text = get(run.lake_port, "/metrics")
        assert status == 200
        assert f'icestream_storage_circuit{{state="closed",target="object store {BUCKET}"}} 1.0' in text
        killed = run.lake_pid
        os.kill(killed, signal.SIGKILL)
        until(lambda: [pid for pid in children_of(run.process.pid) if pid != killed])
        run.until_api()
        assert asyncio.run(committed(run.lake_port, 2)) == [1, 2]
        os.kill(run.process.pid, signal.SIGKILL)
    with LakeRun(tmp_path, *arguments(seaweed_server, root)) as run:
        run.until_api()
        assert asyncio.run(committed(run.lake_port, 3)) == [1, 2, 3]


def test_engines_get_endpoint_and_keys_from_the_catalog_alone(seaweed_server: Seaweed, tmp_path: Path) -> None:
    """PyIceberg writes and DuckDB reads tables in S3; all that they are given is an address and a token."""
    import pyarrow as pa
    from pyiceberg.catalog.rest import RestCatalog

    token = "0123456789abcdef-of-the-test"
    secret_file(tmp_path / "tokens", f"{token}\n")
    shared = ("--set", f"lake.token_file={tmp_path / 'tokens'}", "--set", "lake.share_keys=true")
    with LakeRun(tmp_path / "data", *arguments(seaweed_server, new_name("own")), *shared) as run:
        run.until_api()
        uri = f"http://127.0.0.1:{run.lake_port}"
        with closing(RestCatalog("own", uri=uri, token=token)) as catalog:
            catalog.create_namespace("shop")
            table = catalog.create_table("shop.orders", schema=pa.schema([("id", pa.int64())]))
            table.append(pa.table({"id": [1, 2, 3]}))
            assert sorted(catalog.load_table("shop.orders").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
        with duckdb_with_iceberg() as database:
            database.sql(f"ATTACH '' AS ice (TYPE iceberg, ENDPOINT '{uri}', TOKEN '{token}')")
            assert database.sql("SELECT sum(id) FROM ice.shop.orders").fetchall() == [(6,)]
            database.sql("INSERT INTO ice.shop.orders VALUES (4)")
        with closing(RestCatalog("own", uri=uri, token=token)) as catalog:
            assert len(catalog.load_table("shop.orders").scan().to_arrow()) == 4


def test_an_old_member_is_fenced_off_the_bucket_by_a_new_cluster(seaweed_server: Seaweed, tmp_path: Path) -> None:
    """ADR 48. The old member runs on while `force-new-cluster` makes another cluster of a copy of its log."""
    flags = arguments(seaweed_server, new_name("fenced"))
    with LakeRun(tmp_path / "old", *flags) as old:
        old.until_api()
        asyncio.run(create_table(old.lake_port))
        until(lambda: "[+] fence" in old.health())
    shutil.copytree(tmp_path / "old", tmp_path / "new", ignore=shutil.ignore_patterns("*.sock"))
    forced = asyncio.run(force_new_cluster(tmp_path / "new" / "raft", SystemClock(), SystemRandomness()))
    with LakeRun(tmp_path / "old", *flags) as old:
        old.until_api()
        with LakeRun(tmp_path / "new", *flags) as new:
            new.until_api()
            until(lambda: "[+] fence" in new.health())
            code, _, err = old.process.end()
            assert code == error_codes.exit_code(errors.ForeignCluster(""))
            assert f"was replaced by cluster {forced.cluster_id.hex()}" in err
            assert asyncio.run(committed(new.lake_port, 2)) == [1, 2]
    with ServeProcess(tmp_path / "old", *flags) as again:
        assert "was replaced by cluster" in again.end()[2]
