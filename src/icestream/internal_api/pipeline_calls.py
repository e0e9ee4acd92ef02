"""The calls of the pipeline driver on the local socket.

method              arguments                      result
pipeline_backlog    wait_ms, files_max,            backlog: an encoded Backlog. Waits until some message is in no table,
                    passed_over                    wait_ms at most. For topics in passed_over it contains only sums
pipeline_lease      lease, epoch, files, ttl_ms    token: opens these files over HTTP, while the lease lasts. Leases
                                                   these log files; repeat to renew; no files to end it
pipeline_committed  positions, reopenings          nothing. Raises committed offsets: [[topic_id, shard, offset], …]
pipeline_reopen     positions                      floors, in the same form: lowered as far as the log has the messages
pipeline_consumed   topic_ids                      topics: [[topic_id, {shard: end}, generation], …]: what all consumers
                                                   have acked, for topics of which that is known
pipeline_state      state                          state, age_ms. The driver reports its state; nil only reads it
pipeline_name                                      name: of the lease of this node's driver, empty without a cluster
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.broker.online_settings import OnlineSettings
from icestream.broker.pipeline_service import PipelineService
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments
from icestream.model.backlog_messages import CLEAN_UP, encode_backlog

PIPELINE_METHODS: Final = (
    "pipeline_backlog",
    "pipeline_lease",
    "pipeline_committed",
    "pipeline_reopen",
    "pipeline_consumed",
    "pipeline_state",
    "pipeline_name",
)

# Settings that a running driver follows, by the last part of their path.
_FOLLOWED_SETTINGS: Final = ("writer_batch_size", "writer_flush_interval_ms", "writer_max_memory_bytes")
_SECTION: Final = "storage.iceberg_config."


class GetBacklog(msgspec.Struct):
    wait_ms: int = 0
    files_max: int = limits.BACKLOG_FILES_MAX
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


class AskConsumed(msgspec.Struct):
    topic_ids: list[int]


class ReportState(msgspec.Struct):
    state: dict[str, Any] | None = None


class PipelineCalls:
    """`service` is None for a broker in memory. Its methods are those of PIPELINE_METHODS."""

    def __init__(self, service: PipelineService | None, online: OnlineSettings | None = None, name: str = "") -> None:
        """`name` is that of the lease of this node's driver (ADR 32)."""
        self._pipeline_service = service
        self._name = name
        self._online = online

    def calls(self) -> dict[str, Call]:
        return {name: getattr(self, name) for name in PIPELINE_METHODS}

    @property
    def _service(self) -> PipelineService:
        if self._pipeline_service is None:
            raise errors.InvalidInput(
                "this broker keeps its messages in memory and writes no tables",
                hint="set `storage.type: iceberg`",
            )
        return self._pipeline_service

    async def pipeline_backlog(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(GetBacklog, arguments)
        backlog = await self._service.backlog(
            request.wait_ms, request.files_max, caller.connection.leaving, frozenset(request.passed_over)
        )
        backlog = msgspec.structs.replace(backlog, changed_settings=self._changed_settings())
        return {"backlog": encode_backlog(backlog)}

    def _changed_settings(self) -> dict[str, int]:
        """Only settings that were changed online: a driver with its own configuration keeps the rest of it."""
        online = self._online
        if online is None:
            return {}
        changed = [name for name in _FOLLOWED_SETTINGS if _SECTION + name in online.stored]
        values = {name: getattr(online.current.storage.iceberg_config, name) for name in changed}
        if f"pipeline.{CLEAN_UP}" in online.stored:
            values[CLEAN_UP] = int(online.current.pipeline.clean_up)
        return values

    async def pipeline_lease(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(LeaseFiles, arguments)
        self._service.lease(request.lease, request.epoch, request.files, request.ttl_ms)
        return {"token": self._service.round_token(request.lease)}

    async def pipeline_name(self, caller: Caller, arguments: Document) -> Document:
        _ = self._service  # raises for a broker in memory
        return {"name": self._name}

    async def pipeline_committed(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ReportCommitted, arguments)
        await self._service.committed(request.positions, request.reopenings)
        return {}

    async def pipeline_reopen(self, caller: Caller, arguments: Document) -> Document:
        floors = await self._service.reopen(decode_arguments(ReopenOffsets, arguments).positions)
        return {"floors": [list(floor) for floor in floors]}

    async def pipeline_consumed(self, caller: Caller, arguments: Document) -> Document:
        consumed = await self._service.consumed(decode_arguments(AskConsumed, arguments).topic_ids)
        # Shards as text: keys of documents are.
        return {
            "topics": [
                [item.topic_id, {str(s): end for s, end in item.ends.items()}, item.generation] for item in consumed
            ]
        }

    async def pipeline_state(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ReportState, arguments)
        if request.state is not None:
            self._service.report(request.state)
        return self._service.state
