"""Reads and raises the fence of a warehouse in an object store, in every process that writes there (ADR 48).

    check      every WAREHOUSE_FENCE_LOOK_SECONDS: was the cluster of this node replaced? Clusters that it replaced
               itself are fenced first
    admit      before a file is written or removed (object_files.py): refused for a cluster that was replaced, and until
               the fence was read once
    report     to the broker, which stops if its cluster was replaced (processes/node/fence_monitor.py)

If the fence was read once and cannot be read now, the last result holds: the store is unavailable then, so nothing can
be written anyway.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from icestream import errors, limits
from icestream.catalogs import warehouse_fence_record
from icestream.catalogs.bucket import Objects
from icestream.catalogs.object_files import SchemeFiles, parse_object_location
from icestream.catalogs.warehouse_fence_record import FenceReport, FenceTerms
from icestream.observability.log import get_logger
from icestream.rpc.link_keeper import LinkKeeper
from icestream.runtime.clock import Clock

_log = get_logger("warehouse.fence")


class WarehouseFence:
    """The fence of a warehouse in an object store."""

    def __init__(self, objects: Objects, warehouse: str) -> None:
        self._objects = objects
        self.warehouse = warehouse

    async def check(self, terms: FenceTerms) -> FenceReport:
        """Fences the clusters that this one replaced, unless it was replaced itself; returns whether it was.

        Raises StorageUnavailable, and ConfigurationError for a fence that cannot be decoded.
        """
        successor = await self._successor_of(terms.cluster)
        if successor:
            return FenceReport(terms.cluster, terms.cluster, successor)
        # Only a cluster that is not replaced itself may fence others: of two successors of one cluster, one must lose.
        for cluster in sorted(terms.superseded):
            successor = await self._successor_of(cluster) or await self._claim(cluster, terms.cluster)
            if warehouse_fence_record.is_rival(successor, terms):
                return FenceReport(terms.cluster, cluster, successor)
        return FenceReport(terms.cluster)

    async def _successor_of(self, cluster: str) -> str:
        """Returns the cluster that replaced this one; empty if it is not fenced."""
        location = warehouse_fence_record.object_location(self.warehouse, cluster)
        data = await self._objects.get(parse_object_location(location).name, limits.WAREHOUSE_FENCE_BYTES_MAX)
        return "" if data is None else warehouse_fence_record.decode_record(data, location).successor

    async def _claim(self, cluster: str, successor: str) -> str:
        """Fences a cluster. Returns the cluster that replaced it: `successor`, or another one that claimed it
        before."""
        location = warehouse_fence_record.object_location(self.warehouse, cluster)
        try:
            # A conditional write: of two clusters that replaced the same one, the first wins, and the other reads its
            # name.
            await self._objects.put_new(
                parse_object_location(location).name, warehouse_fence_record.encode_record(successor)
            )
        except errors.AlreadyExists:
            rival = await self._successor_of(cluster)
            if not rival:
                raise errors.StorageUnavailable(
                    f"{location} was removed while it was written", hint="the fence is read again automatically"
                ) from None
            return rival
        _log.warning("fenced a replaced cluster off the warehouse", replaced=cluster, location=location)
        return successor


class FenceWatch:
    """Watches the fence for a process that writes to the warehouse. The owner runs `run` beside the link keeper."""

    def __init__(self, keeper: LinkKeeper, fence: WarehouseFence, clock: Clock) -> None:
        self._keeper = keeper
        self._fence = fence
        self._clock = clock
        self._report: FenceReport | None = None  # the last one that was read
        self._failure = ""
        self._was_checked = asyncio.Event()

    async def run(self) -> None:
        """Reads the fence and reports to the broker, until it is cancelled."""
        while True:
            report = await self._check()
            self._note(report)
            # The broker may be restarting: `admit` protects the warehouse without it.
            with contextlib.suppress(errors.IcestreamError):
                await self._keeper.call("fence_report", msgspec.to_builtins(report))
            is_read = self._report is not None
            await self._clock.sleep(
                limits.WAREHOUSE_FENCE_LOOK_SECONDS if is_read else limits.WAREHOUSE_FENCE_RETRY_SECONDS
            )

    async def _check(self) -> FenceReport:
        """Reads the fence for the cluster that the broker names. A failure is part of the report."""
        try:
            await self._keeper.wait_connected()
            terms = msgspec.convert(await self._keeper.call("fence_terms", {}), FenceTerms)
            return await self._fence.check(terms) if terms.cluster else FenceReport()
        except msgspec.ValidationError as error:
            return FenceReport(failure=f"invalid fence terms from the broker: {error}")
        except errors.IcestreamError as error:
            return FenceReport(failure=error.message)

    def _note(self, report: FenceReport) -> None:
        if report.failure and report.failure != self._failure:
            _log.warning("warehouse fence cannot be read", reason=report.failure)
        self._failure = report.failure
        if not report.failure:
            self._report = report
        self._was_checked.set()

    async def admit(self) -> None:
        """Raises ForeignCluster if this cluster was replaced, StorageUnavailable if the fence was never read."""
        if not self._was_checked.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.WAREHOUSE_FENCE_WAIT_SECONDS):
                    await self._was_checked.wait()
        if self._report is None:
            raise errors.StorageUnavailable(
                f"the fence of the warehouse {self._fence.warehouse} was not read yet: "
                f"{self._failure or 'no response from the broker'}",
                hint="nothing is written before the fence was read; it is read again automatically",
            )
        if self._report.successor:
            raise warehouse_fence_record.replaced_error(self._report, self._fence.warehouse)


def guard_files(files: SchemeFiles, warehouse: str, keeper: LinkKeeper, clock: Clock) -> FenceWatch:
    """Makes `files` check the fence of `warehouse` before every write to an object store; returns its watch, to be
    run."""
    watch = FenceWatch(keeper, WarehouseFence(files.objects_at(warehouse), warehouse), clock)
    files.admit_by(watch.admit)
    return watch
