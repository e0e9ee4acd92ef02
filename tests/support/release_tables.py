"""Tables of topics that a release wrote, with their log and catalog, kept so that later releases are tested with them.

    python -m tests.support.release_tables tests/releases/tables/0.1.0.tar.xz

writes one with the code of this checkout; with `--older`, with what ingest did before files had the digest of their
rows, and without the envelope columns of LATER_COLUMNS. In an archive:

    warehouse/       metadata, manifests and data files of /default/t1 (two shards) and /default/t2, ROUNDS rounds
    log/             the log with the same messages
    store.json       keys and values of the metadata store, its revision, and the folder of all paths
    messages.json    topic, shard, offset and payload of every message

Paths in metadata are absolute. A folder of a test has a name of the same length, so that the files are moved without
being encoded again: only their compression is.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from unittest.mock import patch

import fastavro

from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules import topic_schema
from icestream.metadata.command import COUNTERS
from icestream.model import ShardKey
from icestream.pipeline.files import topic_files
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import open_directory
from icestream.runtime.randomness import SystemRandomness
from icestream.wal.log_options import LogOptions
from icestream.wal.open_log import open_log_on
from icestream.wal.sink import InlineSink
from tests.support.fault_world import FaultWorld
from tests.support.machine import SMALL
from tests.support.release_backup import without_owner

ROUNDS: Final = 3
LATER_COLUMNS: Final = ("retain", "content_type")
_PREFIX: Final = "icestream-tables-"


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder whose path has the same length in every run."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- writing ----------------------------------------------------------------------------------------------------------


async def _fill(folder: Path) -> None:
    world = await FaultWorld.open(folder)
    life = world.driver()
    for _ in range(ROUNDS):
        await world.publish_some()
        await world.drain(life)
    await world.check()
    entries = {key: base64.b64encode(entry.value).decode() for key, entry in await world.store.list("")}
    store = {"revision": await world.store.revision(), "folder": str(folder), "entries": entries}
    await world.close()
    messages = [
        [*key, offset, payload.decode()]
        for key, payloads in world.published.items()
        for offset, payload in payloads.items()
    ]
    (folder / "store.json").write_text(json.dumps(store), encoding="utf-8")
    (folder / "messages.json").write_text(json.dumps(messages), encoding="utf-8")


def write(path: Path, *, is_older: bool = False) -> None:
    columns = {name: kind for name, kind in topic_schema.COLUMNS.items() if name not in LATER_COLUMNS}
    with _folder() as folder, ExitStack() as older:
        if is_older:
            older.enter_context(patch.object(topic_schema, "COLUMNS", columns))
            older.enter_context(patch.object(topic_files, "FOOTER_KEY", b"icestream.none"))
        asyncio.run(_fill(folder))
        with tarfile.open(path, "w:xz") as archive:
            for name in ("warehouse", "log", "store.json", "messages.json"):
                archive.add(folder / name, name, filter=without_owner)


# --- opening ----------------------------------------------------------------------------------------------------------


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """The folder of an archive, with its own path in all its files."""
    with _folder() as folder:
        with tarfile.open(path) as packed:
            packed.extractall(folder, filter="data")
        before = json.loads((folder / "store.json").read_text(encoding="utf-8"))["folder"].encode()
        after = str(folder).encode()
        assert len(before) == len(after)
        for file in (folder / "warehouse").rglob("*"):
            if file.suffix == ".avro":
                file.write_bytes(_moved_avro(file.read_bytes(), before, after))
            elif file.suffix == ".json":
                file.write_bytes(file.read_bytes().replace(before, after))
        yield folder


def _moved_avro(data: bytes, before: bytes, after: bytes) -> bytes:
    """An Avro file with another path in its blocks, as long as the one before."""
    source, moved = io.BytesIO(data), io.BytesIO()
    fastavro.schemaless_reader(source, {"type": "fixed", "name": "magic", "size": 4})
    header = fastavro.schemaless_reader(source, {"type": "map", "values": "bytes"})
    assert header["avro.codec"] == b"deflate"
    sync = source.read(16)
    moved.write(data[: source.tell()])
    while source.tell() < len(data):
        count, size = (fastavro.schemaless_reader(source, "long") for _ in range(2))
        records = zlib.decompress(source.read(size), wbits=-15).replace(before, after)
        assert source.read(16) == sync
        deflate = zlib.compressobj(wbits=-15)
        block = deflate.compress(records) + deflate.flush()
        for number in (count, len(block)):
            fastavro.schemaless_writer(moved, "long", number)
        moved.write(block + sync)
    return moved.getvalue()


async def open_tables(folder: Path) -> FaultWorld:
    """A world with the log, the catalog and the messages of an archive. The lease of its pipeline has ended."""
    store = json.loads((folder / "store.json").read_text(encoding="utf-8"))
    messages = json.loads((folder / "messages.json").read_text(encoding="utf-8"))
    directory = open_directory(folder / "log")
    log = await open_log_on(directory, LogOptions(**SMALL), {}, SystemClock(), SystemRandomness(), InlineSink())
    world = FaultWorld(folder, log)
    before, after = store["folder"].encode(), str(folder).encode()
    for key, text in store["entries"].items():
        value = base64.b64decode(text)
        if key.startswith(COUNTERS):
            await world.store.raise_counter(key.removeprefix(COUNTERS), int(value))
        elif key != catalog_keys.LEASE:
            await world.store.put(key, value.replace(before, after))
    # Epochs are revisions: those of this life are above those of the tables.
    while await world.store.revision() < store["revision"]:
        await world.store.put("/release", b"")
    for topic_id, shard, offset, payload in messages:
        world.published.setdefault(ShardKey(topic_id, shard), {})[offset] = payload.encode()
    return world


if __name__ == "__main__":
    write(Path(sys.argv[1]), is_older="--older" in sys.argv[2:])
