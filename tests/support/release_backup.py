"""A backup of an MQTT broker that a release made, kept so that later ones are tested against its files (R30).

    python -m tests.support.release_backup tests/releases/0.1.0.tar.xz

writes one with the release of this checkout. It has data files, manifests and metadata of a table, blocks of the log
and records of the session log, as that release and its pyarrow wrote them. What is in it:

    /mqtt/messages    MESSAGES rows, `plant/N/heat`, most of them in the table, the last ones in the log
    "reader"          a durable session on `plant/3/#`, away from the beginning
    "holder"          a durable session on `plant/4/#` with IN_FLIGHT messages that it has not acked
    retained          `plant/state`
"""

from __future__ import annotations

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from pyiceberg.catalog.rest import RestCatalog

from icestream.mqtt.properties import Properties, PropertyId
from tests.support.command_line import icestream
from tests.support.lake_run import until
from tests.support.mqtt_client import EXPIRY_NEVER, V5, mqtt_client
from tests.support.pipeline_process import PipelineRun

RELEASES: Final = Path(__file__).parent.parent / "releases"
MESSAGES, IN_TABLE, TOPICS, IN_FLIGHT = 120, 90, 6, 5
USER_PROPERTIES: Final = [("unit", "C"), ("unit", "K"), ("site", "7")]


def topic_of(number: int) -> str:
    return f"plant/{number % TOPICS}/heat"


def numbers_of(topic: int) -> list[int]:
    return [number for number in range(MESSAGES) if number % TOPICS == topic]


async def publish(port: int, numbers: range) -> None:
    async with mqtt_client(port, "publisher") as publisher:
        for number in numbers:
            properties = Properties([(PropertyId.USER_PROPERTY, pair) for pair in USER_PROPERTIES])
            await publisher.publish(topic_of(number), b"%d" % number, 1, properties=properties)


async def make_sessions(port: int) -> None:
    async with mqtt_client(port, "reader", V5, is_clean_start=False, expiry_seconds=EXPIRY_NEVER) as reader:
        await reader.subscribe(("plant/3/#", 1))
    async with mqtt_client(port, "holder", V5, is_clean_start=False, expiry_seconds=EXPIRY_NEVER) as holder:
        await holder.subscribe(("plant/4/#", 2))


async def hold(port: int) -> None:
    """Its first messages are sent and not acked."""
    options = {"is_clean_start": False, "expiry_seconds": EXPIRY_NEVER}
    receive_maximum = Properties([(PropertyId.RECEIVE_MAXIMUM, IN_FLIGHT)])
    async with mqtt_client(port, "holder", V5, properties=receive_maximum, **options) as holder:  # type: ignore[arg-type]
        await holder.messages(IN_FLIGHT)


async def retain(port: int) -> None:
    async with mqtt_client(port, "publisher") as publisher:
        await publisher.publish("plant/state", b"on", 1, is_retained=True)


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def write(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="icestream-release-") as folder:
        files = "storage.iceberg_config.wal.max_file_size=2MiB", "storage.iceberg_config.wal.max_message_bytes=64KiB"
        options = [word for setting in (*files, "mqtt.enable=true", "mqtt.shards=1") for word in ("--set", setting)]
        with PipelineRun(Path(folder) / "data", *options) as run:
            asyncio.run(make_sessions(run.mqtt_port))
            asyncio.run(publish(run.mqtt_port, range(IN_TABLE)))
            catalog = RestCatalog("icestream", uri=run.uri)
            until(
                lambda: (
                    catalog.table_exists("mqtt.messages")
                    and len(catalog.load_table("mqtt.messages").scan().to_arrow()) >= IN_TABLE
                )
            )
            asyncio.run(retain(run.mqtt_port))
            asyncio.run(publish(run.mqtt_port, range(IN_TABLE, MESSAGES)))
            asyncio.run(hold(run.mqtt_port))
            made = icestream("backup", "create", "--to", f"{folder}/backups", "--broker", f"{folder}/data")
            assert made.code == 0, made.out + made.err
        with tarfile.open(path, "w:xz") as archive:
            archive.add(Path(folder) / "backups", "backups", filter=without_owner)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
