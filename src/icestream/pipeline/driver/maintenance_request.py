"""`icestream lake maintain`: a key of the metadata store that the driver watches, as it does for commit-now.

    /pipeline/maintenance    msgpack of MaintenanceRequest, with a time to live: a request that no driver saw does not
                             wait for one that starts much later

What became of a request is in the state that the driver reports to its broker (`MaintenanceProgress`), where the
command reads it. In a cluster each driver acts on the tables that it writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

KEY: Final = "/pipeline/maintenance"
TTL_MS: Final = 60_000
# The kinds of care that can be asked for, in the order in which they are carried out.
EXPIRE: Final = "expire"
CLEAN_UP: Final = "clean-up"
RETENTION: Final = "retention"
COMPACT: Final = "compact"
JOBS: Final = (EXPIRE, CLEAN_UP, RETENTION, COMPACT)
_log = get_logger("pipeline")


class RequestedTable(msgspec.Struct, frozen=True, array_like=True):
    """The table of a topic."""

    topic_id: int
    topic: str


class MaintenanceRequest(msgspec.Struct, frozen=True):
    """What an operator asked for. `tables`: empty for all that the driver has loaded."""

    id: str
    tables: list[RequestedTable] = []
    is_dry_run: bool = False
    jobs: list[str] = msgspec.field(default_factory=lambda: [COMPACT])
    repartitions: bool = False  # compaction also rewrites files of older partition specs


class PlannedGroup(msgspec.Struct, frozen=True):
    """Files that are to become one (one for each partition value: `detail`), or to be removed."""

    table: str
    files: int
    bytes: int
    rows: int
    job: str = COMPACT
    detail: str = ""


class MaintenanceProgress(msgspec.Struct):
    """What has become of the last request."""

    id: str
    is_done: bool = False
    groups_planned: int = 0
    groups_done: int = 0
    groups_left_alone: int = 0  # they cannot get better, are not understood, or were overtaken
    replaced_files: int = 0
    added_files: int = 0
    reason: str = ""  # why nothing could be done with a table
    # At most MAINTENANCE_PLAN_MAX: what a dry run would do, and what jobs other than compaction have done.
    plan: list[PlannedGroup] = []


_decoder: Final = msgspec.msgpack.Decoder(MaintenanceRequest)


def encode_request(request: MaintenanceRequest) -> bytes:
    return msgspec.msgpack.encode(request)


async def watch_maintenance(store: MetadataStore, clock: Clock, accept: Callable[[MaintenanceRequest], None]) -> None:
    """Calls `accept` for each request, until it is cancelled. A watch that fails is started again."""
    while True:
        try:
            # The revision first: a request that is written between the two reads is seen by the watch.
            revision = await store.revision()
            await _accept_stored(store, accept)
            async for _ in store.watch(KEY, revision):
                await _accept_stored(store, accept)
        except errors.IcestreamError:
            await clock.sleep(limits.PIPELINE_RETRY_SECONDS_MAX)


async def _accept_stored(store: MetadataStore, accept: Callable[[MaintenanceRequest], None]) -> None:
    entry = await store.get(KEY)
    if entry is None:
        return
    try:
        accept(_decoder.decode(entry.value))
    except msgspec.MsgspecError as error:
        _log.warning("request for maintenance cannot be read", reason=str(error))
