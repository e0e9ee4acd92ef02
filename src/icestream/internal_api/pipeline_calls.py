"""What the driver of the pipeline asks: methods of a CALL that only the local socket offers.

method              arguments                      result
pipeline_backlog    wait_ms, files_max, after_lsn  backlog: bytes of model/backlog.py. It waits until something is
                    passed_over                    in no table and the log is beyond after_lsn; wait_ms at most. Of the
                                                   topics that are passed over it tells sums
pipeline_lease      lease, epoch, files, ttl_ms    nothing. Holds these log files; again to renew; no file ends it
pipeline_committed  positions, reopenings          nothing. [[topic_id, shard, offset], …]: floors, never down
pipeline_reopen     positions                      floors, in the same form: they went down, as far as the log has it
pipeline_state      state                          state, age_ms. What the driver says of itself; nil only asks
pipeline_name                                      name: of the lease of this node's driver, empty for a node on its own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from icestream import errors, limits
from icestream.broker.online_settings import OnlineSettings
from icestream.broker.pipeline_service import PipelineService
from icestream.frontends.native.public_calls import Call, Document, arguments_of
from icestream.model.backlog import encode_backlog

if TYPE_CHECKING:
    from icestream.frontends.native.native_connection import NativeConnection

PIPELINE_METHODS: Final = (
    "pipeline_backlog",
    "pipeline_lease",
    "pipeline_committed",
    "pipeline_reopen",
    "pipeline_state",
    "pipeline_name",
)

# What the driver follows while it runs, by the last part of its path.
_FOLLOWED: Final = ("writer_batch_size", "writer_flush_interval_ms", "writer_max_memory_bytes")
_SECTION: Final = "storage.iceberg_config."


class GetBacklog(msgspec.Struct):
    wait_ms: int = 0
    files_max: int = limits.BACKLOG_FILES_MAX
    after_lsn: int = 0
    passed_over: list[int] = []


class LeaseFiles(msgspec.Struct):
    lease: str
    files: list[int]
    ttl_ms: int = 0
    epoch: int = 0


class ReportCommitted(msgspec.Struct):
    positions: list[tuple[int, int, int]]
    reopenings: int | None = None


class ReopenOffsets(msgspec.Struct):
    positions: list[tuple[int, int, int]]


class ReportState(msgspec.Struct):
    state: dict[str, Any] | None = None


class PipelineCalls:
    """`ingest` is None for a broker in memory. Its methods have the names of PIPELINE_METHODS."""

    def __init__(self, ingest: PipelineService | None, online: OnlineSettings | None = None, name: str = "") -> None:
        """`name`: of the lease of this node's driver (ADR 32)."""
        self._found = ingest
        self._name = name
        self._online = online

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in PIPELINE_METHODS}

    @property
    def _ingest(self) -> PipelineService:
        if self._found is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory: none of them becomes a row",
                hint="storage.type iceberg has tables",
            )
        return self._found

    async def pipeline_backlog(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(GetBacklog, given)
        found = await self._ingest.backlog(
            asked.wait_ms, asked.files_max, asked.after_lsn, connection.leaving, frozenset(asked.passed_over)
        )
        return {"backlog": encode_backlog(msgspec.structs.replace(found, changed_settings=self._changed_settings()))}

    def _changed_settings(self) -> dict[str, int]:
        """Only what was changed on purpose: a driver with a configuration of its own keeps the rest of it."""
        online = self._online
        if online is None:
            return {}
        changed = [name for name in _FOLLOWED if _SECTION + name in online.stored]
        return {name: getattr(online.current.storage.iceberg_config, name) for name in changed}

    async def pipeline_lease(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(LeaseFiles, given)
        self._ingest.lease(asked.lease, asked.epoch, asked.files, asked.ttl_ms)
        return {}

    async def pipeline_name(self, connection: NativeConnection, given: Document) -> Document:
        _ = self._ingest  # a broker in memory has none
        return {"name": self._name}

    async def pipeline_committed(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(ReportCommitted, given)
        await self._ingest.committed(asked.positions, asked.reopenings)
        return {}

    async def pipeline_reopen(self, connection: NativeConnection, given: Document) -> Document:
        floors = await self._ingest.reopen(arguments_of(ReopenOffsets, given).positions)
        return {"floors": [list(one) for one in floors]}

    async def pipeline_state(self, connection: NativeConnection, given: Document) -> Document:
        asked = arguments_of(ReportState, given)
        if asked.state is not None:
            self._ingest.tell(asked.state)
        return self._ingest.state
