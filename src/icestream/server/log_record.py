"""Whether this node has had a log, by the metadata store: then a start without one is damage (hazard 5).

A directory in which everything was deleted, or whose disk is not mounted, looks like a log that was never begun; a
start would give out offsets again that were acked. The record is written once in the life of a log, when it is open and
before any message is taken. A start that dies in between leaves a log without a record, as older versions do: the next
start writes it.
"""

from __future__ import annotations

from icestream.broker.neighbours import Neighbours
from icestream.broker.records import NODE_LOGS
from icestream.metadata.store import MetadataStore


async def has_log_record(store: MetadataStore, neighbours: Neighbours) -> bool:
    """Whether this node has had a log, also as the node that it was before it joined anew (cluster/rejoin.py)."""
    entries = await store.list_all(NODE_LOGS)
    return any(neighbours.is_own(key.removeprefix(NODE_LOGS)) for key, _ in entries)


async def record_log(store: MetadataStore, neighbours: Neighbours) -> None:
    """Called with the log open. Costs a write of the metadata store only where the record is not there yet."""
    key = NODE_LOGS + neighbours.own
    if await store.get(key) is None:
        await store.put(key, b"{}")
