"""Reads and raises the fence of a warehouse in an object store, in every process that writes there (ADR 48).

    look       every WAREHOUSE_FENCE_LOOK_SECONDS: is the cluster of this node replaced? Those that it replaced itself
               are fenced first
    admit      before a file is written or removed (object_files.py): refused on the wrong side of the fence, and until
               the fence was read once
    tell       the broker, which stops when it is on the wrong side (server/fence_monitor.py)

A fence that was read once and cannot be read now changes nothing: while the store is unavailable, nothing is written.
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
    def __init__(self, objects: Objects, warehouse: str) -> None:
        self._objects = objects
        self.warehouse = warehouse

    async def look(self, terms: FenceTerms) -> FenceReport:
        """Fences the clusters that this one replaced, unless it is replaced itself. Raises StorageUnavailable and
        ConfigurationError."""
        successor = await self._successor_of(terms.cluster)
        if successor:
            return FenceReport(terms.cluster, terms.cluster, successor)
        for cluster in sorted(terms.superseded):
            successor = await self._successor_of(cluster) or await self._claimed(cluster, terms.cluster)
            if warehouse_fence_record.is_rival(successor, terms):
                return FenceReport(terms.cluster, cluster, successor)
        return FenceReport(terms.cluster)

    async def _successor_of(self, cluster: str) -> str:
        """Empty for a cluster that is not fenced."""
        location = warehouse_fence_record.object_location(self.warehouse, cluster)
        data = await self._objects.get(parse_object_location(location).name, limits.WAREHOUSE_FENCE_BYTES_MAX)
        return "" if data is None else warehouse_fence_record.decode_record(data, location).successor

    async def _claimed(self, cluster: str, successor: str) -> str:
        """Who replaced the cluster: `successor`, unless another one was faster."""
        location = warehouse_fence_record.object_location(self.warehouse, cluster)
        try:
            await self._objects.put_new(
                parse_object_location(location).name, warehouse_fence_record.encode_record(successor)
            )
        except errors.AlreadyExists:
            rival = await self._successor_of(cluster)
            if not rival:
                raise errors.StorageUnavailable(
                    f"{location} was removed while it was written", hint="it is tried again by itself"
                ) from None
            return rival
        _log.warning("a replaced cluster is fenced off the warehouse", replaced=cluster, location=location)
        return successor


class FenceWatch:
    """Watches the fence for a process that writes to the warehouse. The owner runs `run` beside the link keeper."""

    def __init__(self, keeper: LinkKeeper, fence: WarehouseFence, clock: Clock) -> None:
        self._keeper = keeper
        self._fence = fence
        self._clock = clock
        self._report: FenceReport | None = None  # the last one that was read
        self._failure = ""
        self._looked = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            report = await self._look()
            self._note(report)
            with contextlib.suppress(errors.IcestreamError):
                await self._keeper.call("fence_report", msgspec.to_builtins(report))
            is_read = self._report is not None
            await self._clock.sleep(
                limits.WAREHOUSE_FENCE_LOOK_SECONDS if is_read else limits.WAREHOUSE_FENCE_RETRY_SECONDS
            )

    async def _look(self) -> FenceReport:
        try:
            await self._keeper.wait_connected()
            terms = msgspec.convert(await self._keeper.call("fence_terms", {}), FenceTerms)
            return await self._fence.look(terms) if terms.cluster else FenceReport()
        except msgspec.ValidationError as error:
            return FenceReport(failure=f"the broker's answer names no cluster: {error}")
        except errors.IcestreamError as error:
            return FenceReport(failure=error.message)

    def _note(self, report: FenceReport) -> None:
        if report.failure and report.failure != self._failure:
            _log.warning("the fence of the warehouse cannot be read", reason=report.failure)
        self._failure = report.failure
        if not report.failure:
            self._report = report
        self._looked.set()

    async def admit(self) -> None:
        """Raises ForeignCluster on the wrong side of the fence, StorageUnavailable where the fence was never read."""
        if not self._looked.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.WAREHOUSE_FENCE_WAIT_SECONDS):
                    await self._looked.wait()
        if self._report is None:
            raise errors.StorageUnavailable(
                f"the fence of the warehouse {self._fence.warehouse} was not read yet: "
                f"{self._failure or 'the broker does not answer'}",
                hint="nothing is written there before it is known that this cluster may; it is tried again by itself",
            )
        if self._report.successor:
            raise warehouse_fence_record.replaced_error(self._report, self._fence.warehouse)


def guard_files(files: SchemeFiles, warehouse: str, keeper: LinkKeeper, clock: Clock) -> FenceWatch:
    """From now on nothing is written to object stores through `files` against the fence of `warehouse`."""
    watch = FenceWatch(keeper, WarehouseFence(files.objects_at(warehouse), warehouse), clock)
    files.admit_by(watch.admit)
    return watch
