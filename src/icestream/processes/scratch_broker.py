"""A broker for a drill: empty, without front ends for clients, in a folder that is removed with it (ADR 114)."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

from icestream import errors
from icestream.catalog.catalog import Catalog
from icestream.catalog.topic_rules.operation_preview import Consent, ShardLog, TopicLog
from icestream.iceberg.file_io import LocalFiles, open_local
from icestream.iceberg.identifier import Identifier
from icestream.model.shard import ShardKey
from icestream.model.topic_name import TopicName
from icestream.processes.broker_process import BrokerNode
from icestream.processes.configured_catalog import open_embedded_catalog
from icestream.processes.restored_tables import RestoredTables
from icestream.rpc.link import Link, open_link
from icestream.runtime.tasks import Offload
from icestream.settings import Settings
from icestream.settings.tree import PortsSection

# Small files, none of them zeroed in the background: a start takes milliseconds.
_PREFIX: Final = "icestream-drill-"
_LOCK: Final = "lock"  # held as long as the folder is used
_LOG: Final = {"max_file_size": "16MiB", "spare_files": 0, "ballast": 0}


class ScratchBroker:
    """Use it with `async with`."""

    def __init__(self, directory: Path | None, offload: Offload) -> None:
        """`directory`: where its folder is made; None: the directory for temporary files."""
        self._directory = directory
        self._offload = offload
        self._link: Link | None = None
        self._started: BrokerNode | None = None
        self.folder = Path()
        self._lock: BinaryIO | None = None
        self.files: LocalFiles
        self.catalog: Catalog
        self.tables: RestoredTables

    @property
    def node(self) -> BrokerNode:
        assert self._started is not None
        return self._started

    async def __aenter__(self) -> ScratchBroker:
        self.folder = await self._offload.run(self._make_folder)
        try:
            settings = _settings(self.folder)
            self.files = files = LocalFiles(open_local, self._offload)
            self._started = await BrokerNode.start(settings)
            self._link = await open_link(settings.local_socket, "drill")
            self.catalog = open_embedded_catalog(settings, self._started.store, files, self._offload)
            self.tables = RestoredTables(settings, files)
        except BaseException:
            await self._close()
            raise
        return self

    def _make_folder(self) -> Path:
        """Makes the folder, after those are removed that drills left which were killed: nothing locks them any more."""
        directory = self._directory or Path(tempfile.gettempdir())
        directory.mkdir(parents=True, exist_ok=True)
        for folder in directory.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory)).absolute()
        self._lock = (folder / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return folder

    def _remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        link, self._link = self._link, None
        node, self._started = self._started, None
        try:
            if link is not None:
                link.close()
            if node is not None:
                await node.stop()
        finally:
            await self._offload.run(self._remove_folder)

    async def call(self, method: str, /, **arguments: Any) -> Mapping[str, Any]:
        assert self._link is not None
        answer: Mapping[str, Any] = await self._link.call(method, arguments)
        return answer

    async def adopt(self, topic: TopicName, table: Identifier, metadata_file: str) -> None:
        """Binds a restored table to its topic, as `icestream lake adopt` does through the lake process."""
        for depth in range(1, len(table.namespace) + 1):
            try:
                await self.catalog.namespaces.create(table.namespace[:depth], {})
            except errors.AlreadyExists:
                continue
        await self.catalog.tables.register(table, metadata_file)
        record = self.node.broker.topics.get(topic).record
        shards = {}
        for number in range(record.shards):
            stream = self.node.broker.storage.shard_stream(ShardKey(record.id, number))
            earliest = stream.log_start()
            shards[number] = ShardLog(stream.epoch, earliest, max(earliest, stream.synced))
        await self.catalog.topics.adopt(table, TopicLog(str(topic), record.id, shards), [Consent.GAP])


def _settings(folder: Path) -> Settings:
    return Settings.model_validate({
        "data_dir": str(folder / "data"),
        "ports": dict.fromkeys(PortsSection.model_fields, 0),
        "lake": {"managed": False},
        "pipeline": {"managed": False},
        "danube": {"enable": False},
        "mqtt": {"enable": False},
        "storage": {"type": "iceberg", "iceberg_config": {"warehouse": f"file:{folder}/warehouse", "wal": _LOG}},
    })  # fmt: skip
