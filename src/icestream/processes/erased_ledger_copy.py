"""Brings the ledger of erased offsets in the backup target up to date after each erasure (ADR 124).

A restore after the loss of the broker knows then what was erased since the last backup.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from icestream import errors
from icestream.backup.backup_target import open_target
from icestream.backup.erased_ledger import ErasedLedger, put_ledger
from icestream.backup.node_client import Call, NodeClient
from icestream.backup.recorded_topics import PREFIX, RecordedTopic
from icestream.broker.erased_topics import own_logs
from icestream.catalog import catalog_keys
from icestream.catalog.topic_rules.erased_record import ErasedRecord
from icestream.iceberg.file_io import TableFiles
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.processes.component_options import store_options
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload
from icestream.settings import Settings

_log = get_logger("backup")
_RETRY_SECONDS: Final = 60.0


class ErasedLedgerCopy:
    """Writes the ledgers of the topics of one node. A target that cannot be reached is tried again."""

    def __init__(
        self,
        settings: Settings,
        store: MetadataStore,
        call: Call,
        files: TableFiles,
        clock: Clock,
        randomness: Randomness,
        offload: Offload,
    ) -> None:
        """`call`: of the broker. `files`: of the warehouse, where the side files are."""
        self._settings = settings
        self._store = store
        self._call = call
        self._files = files
        self._clock = clock
        self._randomness = randomness
        self._offload = offload
        self._copied: dict[int, str] = {}  # by topic id: the checksum of the offsets that the target has

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                # The watch begins before the records are read: no erasure between the two is missed.
                changes = self._store.watch(catalog_keys.ERASED, await self._store.revision())
                await self.run_pass()
                async for _ in changes:
                    await self.run_pass()
            except (errors.IcestreamError, OSError) as error:
                _log.error("ledger of erased offsets not copied to the backup target, it is retried", reason=str(error))
            await self._clock.sleep(_RETRY_SECONDS)

    async def run_pass(self) -> None:
        """Writes what the target does not have."""
        waiting: dict[int, ErasedRecord] = {}
        for key, entry in await self._store.list_all(catalog_keys.ERASED):
            number = key.removeprefix(catalog_keys.ERASED)
            record = msgspec.json.decode(entry.value, type=ErasedRecord) if number.isdigit() else None
            if record is not None and self._copied.get(int(number)) != record.sha256:
                waiting[int(number)] = record
        if not waiting:
            return
        topics = {}
        for key, entry in await self._store.list_all(PREFIX):
            topic = msgspec.json.decode(entry.value, type=RecordedTopic)
            topics[topic.id] = msgspec.structs.replace(topic, name=f"/{key.removeprefix(PREFIX)}")
        log_id = await NodeClient(self._call, "").log_id()
        logs = sorted({log_id, *await own_logs(self._store)} - {""})
        with tempfile.TemporaryDirectory(prefix="icestream-ledger-") as spool:
            target = open_target(
                self._settings.backup.target or "", store_options(self._settings), self._clock, self._randomness,
                self._offload, Path(spool),
            )  # fmt: skip
            for topic_id, record in waiting.items():
                owner = topics.get(topic_id)
                if owner is not None:  # of a deleted topic it was written before, or it goes with the next backup
                    offsets = await self._files.read(record.offsets)
                    if hashlib.sha256(offsets).hexdigest() != record.sha256:
                        raise errors.DecodeError(f"{record.offsets} is not the recorded file of erased offsets")
                    ledger = ErasedLedger(log_id, topic_id, owner.name, owner.restored_from, offsets, logs=logs)
                    await put_ledger(target, ledger)
                self._copied[topic_id] = record.sha256
        _log.info("ledger of erased offsets copied to the backup target", topics=len(waiting))
