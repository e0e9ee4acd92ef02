"""How the parts of a node are doing, when somebody asks. Needed: metadata, log, broker; the rest is only shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from icestream.metadata.node_store import NodeStore
from icestream.observability.health import Check
from icestream.observability.words import size_text
from icestream.server.children import Child

if TYPE_CHECKING:
    from icestream.broker.service import Broker
    from icestream.metadata.store import MetadataStore
    from icestream.server.node import Node
    from icestream.wal.log import Log

OPENING = "it is being opened"


def checks(node: Node | None, children: list[Child]) -> list[Check]:
    """`node` is None while it starts."""
    if node is None:
        return [Check(name, False, OPENING) for name in ("metadata", "log", "broker")]
    found = [_metadata(node.store), *_log(node.log), _broker(node.broker)]
    said = node.ingest.check() if node.ingest is not None else None
    return found + ([said] if said is not None else []) + [child.check() for child in children]


def _metadata(store: MetadataStore) -> Check:
    if not isinstance(store, NodeStore):
        return Check("metadata", True, "in memory")
    if store.stopped is not None:
        return Check("metadata", False, str(store.stopped))
    return Check("metadata", store.is_ready, "" if store.is_ready else "it still reads its log")


def _log(log: Log | None) -> Iterator[Check]:
    if log is None:
        yield Check("log", True, "in memory")
        return
    yield Check("log", log.stopped is None, str(log.stopped) if log.stopped is not None else "")
    yield _disk(log)


def _disk(log: Log) -> Check:
    """Shown only: consumers are served from a full disk too, and nobody gets it empty by staying away."""
    used, quota = log.upkeep.held_bytes, log.quota
    reason = f"the log uses {size_text(used)} of {size_text(quota.node_bytes)}"
    if log.upkeep.ballast.is_given:
        return Check("disk", False, f"it is full, what was kept for draining is in use: {reason}", is_needed=False)
    if log.upkeep.prepare_error is not None:
        return Check("disk", False, f"no room for another file: {log.upkeep.prepare_error}", is_needed=False)
    if used >= quota.node_bytes:
        return Check("disk", False, f"the quota is reached, producers are refused: {reason}", is_needed=False)
    if used >= quota.slow_node_bytes:
        return Check("disk", False, f"the quota is near, producers are slowed: {reason}", is_needed=False)
    return Check("disk", True, reason, is_needed=False)


def _broker(broker: Broker) -> Check:
    if broker.is_closing:
        return Check("broker", False, "it is shutting down")
    return Check("broker", broker.is_ready, "" if broker.is_ready else "it still reads its topics")
