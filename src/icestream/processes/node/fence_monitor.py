"""The warehouse fence in an object store, as the broker learns of it: by reports of its child processes (ADR 48).

    {meta_store.data_dir}.fenced    JSON, a FenceReport: this node was fenced off. Its next start is refused at once,
                                    before its lake process has read the fence; another cluster id is accepted

The broker itself does not access the object store. A node that is fenced off stops with ForeignCluster, as with a
warehouse directory (directory_fence.py).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from icestream import errors, limits
from icestream.catalogs import warehouse_fence_record
from icestream.catalogs.warehouse_fence_record import FenceReport, FenceTerms
from icestream.cluster.members import SUPERSEDED_CLUSTERS
from icestream.metadata.node_store import NodeStore
from icestream.observability.health import Check
from icestream.processes.component_options import object_warehouse
from icestream.runtime.clock import Clock
from icestream.settings import Settings


class ObjectFenceMonitor:
    def __init__(self, store: NodeStore, warehouse: str, note: Path, clock: Clock, *, has_children: bool) -> None:
        """`note` is the file that records that this node was fenced off. `has_children`: the node starts processes that
        read the fence."""
        self._store = store
        self._warehouse = warehouse
        self._note = note
        self._clock = clock
        self._has_children = has_children
        self._started_ns = clock.monotonic_ns()
        self._last_report: FenceReport | None = None

    async def terms(self) -> FenceTerms:
        keys = [key for key, _ in await self._store.list_all(SUPERSEDED_CLUSTERS)]
        return FenceTerms(self._cluster, [key.removeprefix(SUPERSEDED_CLUSTERS) for key in keys])

    @property
    def _cluster(self) -> str:
        return self._store.identity.cluster_id.hex()

    async def report(self, report: FenceReport) -> None:
        """Records a report; stops the node if it is fenced off.

        A report for another cluster id is ignored: it was sent before this broker was restarted with a new one.
        """
        if not report.failure and report.cluster != self._cluster:
            return
        self._last_report = report
        if report.successor:
            error = warehouse_fence_record.replaced_error(report, self._warehouse, [str(self._note)])
            try:
                await asyncio.to_thread(_write_note, self._note, report)
            finally:
                self._store.node.fail(error)

    def check(self) -> Check:
        """Required only shortly after the start: a member of a replaced cluster must not take messages before it knows.

        Later a missing report means that the object store is unreachable, for all nodes, or the lake process is down;
        both have checks of their own.
        """
        report = self._last_report
        if report is None:
            seconds = (self._clock.monotonic_ns() - self._started_ns) / 1e9
            is_needed = self._has_children and seconds < limits.WAREHOUSE_FENCE_WAIT_SECONDS
            return Check("fence", False, f"the fence of {self._warehouse} has not been read yet", is_needed)
        if report.failure:
            reason = f"the fence of {self._warehouse} cannot be read: {report.failure}"
            return Check("fence", False, reason, is_needed=False)
        if report.successor:
            return Check("fence", False, warehouse_fence_record.replaced_error(report, self._warehouse).message)
        return Check("fence", True, f"cluster {self._cluster[:8]} may use {self._warehouse}", is_needed=False)


def open_fence_monitor(settings: Settings, store: NodeStore, clock: Clock) -> ObjectFenceMonitor | None:
    """None if the warehouse is not in an object store."""
    warehouse = object_warehouse(settings)
    if not warehouse:
        return None
    has_children = settings.lake.managed or settings.pipeline.managed
    return ObjectFenceMonitor(store, warehouse, fenced_note_path(settings), clock, has_children=has_children)


def fenced_note_path(settings: Settings) -> Path:
    directory = settings.meta_store.data_dir
    return directory.with_name(directory.name + ".fenced")


def check_fenced_note(settings: Settings, store: NodeStore) -> None:
    """Raises ForeignCluster if an earlier run of this node was fenced off, ConfigurationError for a damaged note."""
    warehouse, path = object_warehouse(settings), fenced_note_path(settings)
    if not warehouse:
        return
    try:
        report = msgspec.json.decode(path.read_bytes(), type=FenceReport)
    except FileNotFoundError:
        return
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise errors.ConfigurationError(
            f"{path} is not the note of a node that was fenced off its warehouse: {error}",
            hint="remove it; the fence in the warehouse is read again",
        ) from None
    if report.cluster == store.identity.cluster_id.hex():
        raise warehouse_fence_record.replaced_error(report, warehouse, [str(path)])


def _write_note(path: Path, report: FenceReport) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(report))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
