"""From the producer to S3 and back: Spark writes the tables, subscriptions read them when the log has let go, verify
proves them. With the embedded catalog, and with each kind of foreign one: REST, Glue, PostgreSQL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from icestream import connect
from tests.support.catalog_servers import CATALOG, glue_flags, new_name, s3_flags, seaweed_flags, sql_flags
from tests.support.lake_run import until
from tests.support.pipeline_process import PipelineRun
from tests.support.seaweed import BUCKET, TABLE_ROLE, Seaweed
from tests.support.secret_files import secret_file

Row = tuple[int, bytes, bytes | None, dict[str, str]]
TOPIC, COUNT = "/default/orders", 60
# Nothing is read from memory, and the log lets go of what is committed as soon as it can.
FROM_TABLES = (
    "broker.tail_enabled=false",
    "lake.cache_enabled=false",
    "storage.iceberg_config.wal.warm_ms=0",
    "storage.iceberg_config.wal.checkpoint_every_bytes=64KiB",
)


def flags(kind: str, server: Seaweed, request: pytest.FixtureRequest) -> list[str]:
    place = f"storage.iceberg_config.warehouse=s3://{BUCKET}/{new_name('own')}"
    catalog: list[str] = []
    match kind:
        case "embedded":  # tasks get keys of their tables (hazard 122)
            catalog = [f"storage.iceberg_config.object_store.table_role_arn={TABLE_ROLE}"]
        case "rest":
            place = f"storage.iceberg_config.namespace={new_name('ns').replace('_', '')}"
            catalog = seaweed_flags(server)
        case "glue":
            catalog = [*glue_flags(request.getfixturevalue("glue")), f"{CATALOG}.database={new_name('history')}"]
        case "sql":
            catalog = [*sql_flags(request.getfixturevalue("postgres_server").uri), f"{CATALOG}.name={new_name()}"]
    chosen = [*s3_flags(server), *catalog, place, *FROM_TABLES]
    return [part for flag in chosen for part in ("--set", flag)]


def payload(number: int) -> bytes:
    return b"%d " % number + bytes(4_000)


async def publish(address: str) -> None:
    async with connect(f"icestream://{address}") as client, client.producer(TOPIC, name="p") as producer:
        for number in range(COUNT):
            await producer.send(payload(number), key=b"k%d" % (number % 7), headers={"n": str(number)})


def expected() -> list[Row]:
    return [(at, payload(at), b"k%d" % (at % 7), {"n": str(at)}) for at in range(COUNT)]


async def read_back(address: str, name: str, topic: str = TOPIC) -> list[Row]:
    got = []
    async with (
        connect(f"icestream://{address}") as client,
        client.subscribe(topic, name, start="earliest") as subscription,
    ):
        async for message in subscription:
            got.append((message.offset, bytes(message.payload), message.key, dict(message.headers)))
            if len(got) == COUNT:
                return got
    raise AssertionError("it ended")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["embedded", "rest", "glue", "sql"])
def test_published_messages_are_read_back_from_s3(
    kind: str, seaweed_server: Seaweed, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with PipelineRun(tmp_path / "data", *flags(kind, seaweed_server, request)) as run:
        asyncio.run(publish(run.address))
        run.icestream("lake", "commit-now", "--wait", "120")
        shown = f"namespaces/default/topics/{TOPIC.rpartition('/')[2]}"
        until(lambda: run.api(shown)["shard_offsets"][0]["earliest"] > COUNT // 2)
        assert asyncio.run(read_back(run.address, "s")) == expected()
        assert run.reads_by_tier()["table"] >= 1
        report = run.api(f"lake/verify?topic={TOPIC}&deep=true")
        assert (report["is_good"], report["findings"], report["files"] >= 1) == (True, [], True)
        if kind == "embedded":
            place = f"{request.getfixturevalue('locked_bucket')}/{new_name('backups')}"
            check_restore(run, tmp_path, place, [part for flag in s3_flags(seaweed_server) for part in ("--set", flag)])


def check_restore(run: PipelineRun, folder: Path, location: str, store: list[str]) -> None:
    """Tables of a bucket go through an encrypted backup that is locked, and come back into the bucket. `store`: a
    broker reports no keys."""
    secret_file(folder / "key", f"{bytes(range(32)).hex()}\n")
    place = ("--to", location, "--key", f"file:{folder / 'key'}", *store)
    lock = ("--set", "backup.object_lock.mode=governance", "--set", "backup.object_lock.days=2")
    backup = run.icestream("backup", "create", "--topics", TOPIC, *place, *lock)
    assert (backup["state"], backup["lock"]["mode"]) == ("complete", "governance")
    assert backup["lock"]["until_ms"] - backup["cut_ms"] >= 2 * 86_400_000
    chosen = ("--topics", TOPIC, "--as", "/default/again")
    (restored,) = run.icestream("backup", "restore", backup["id"], *chosen, *place)["topics"]
    assert (restored["messages"], restored["problem"]) == (COUNT, "")
    report = run.api("lake/verify?topic=/default/again&deep=true")
    assert report["is_good"], report
    assert asyncio.run(read_back(run.address, "t", "/default/again")) == expected()
