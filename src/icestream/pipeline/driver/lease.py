"""The lease of the driver: one pipeline commits at a time, and every commit says under which epoch (hazards 1, 25).

`/pipeline/lease` in the metadata store: a lease (metadata/leases.py), whose value is the epoch. In a cluster each node
has a pipeline of its own for the topics of its log, and a lease below that key (ADR 32). A renewal writes nothing; our
own catalog compares the value in the transaction of each commit. Two drivers at once lose nothing: the older one's
commits are refused.

    free     --acquire: the key does not exist-->           held
    held     --renewed in time-->                           held
    held     --not renewed, or the key has another value-->   lost: nothing is committed any more
    held     --released, because there is nothing to do-->  free: an idle pipeline writes nothing

The time to live is measured on the monotonic clock, from before the renewal was sent. The next driver waits until the
key is gone, unless the holder was the same child of the same broker: that one is dead, as its parent knows.
"""

from __future__ import annotations

import asyncio
import contextlib

from icestream import errors, limits
from icestream.catalog import catalog_keys, catalog_records
from icestream.catalog.catalog_records import LeaseRecord
from icestream.metadata import command as cmd
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock

_log = get_logger("pipeline.lease")
COUNTER = "pipeline-epoch"


class DriverLease:
    """The lease of one driver. `check` is called before each effect that only the holder may have."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        owner: str = "",
        ttl_ms: int = limits.PIPELINE_LEASE_TTL_MS,
        name: str = "",
    ) -> None:
        """`owner`: a name that only one driver at a time can have, such as that of a child of its broker; or empty.
        `name`: which lease, the id of a node of a cluster."""
        self._key = catalog_keys.lease_key(name)
        self._store = store
        self._clock = clock
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._value = b""
        self._until_ns = 0
        self._renewing: asyncio.Task[None] | None = None
        self.epoch = 0

    @property
    def is_held(self) -> bool:
        return bool(self._value) and self._clock.monotonic_ns() < self._until_ns

    def check(self) -> int:
        """Returns the epoch. Raises LeaseLost when it is not certain any more that the lease is held."""
        if not self.is_held:
            raise errors.LeaseLost(
                "the pipeline lease was lost", hint="another driver has it, or the broker was away too long"
            )
        return self.epoch

    async def acquire(self) -> None:
        """Waits until the lease is held. Returns at once if it is already."""
        if self.is_held:
            return
        await self.release()
        is_logged = False
        while not await self._try_acquire():
            if not is_logged:
                _log.info("another pipeline holds the lease: waiting")
                is_logged = True
            await self._clock.sleep(self._ttl_ms / 3000)

    async def _try_acquire(self) -> bool:
        """Takes a new epoch with each attempt, so that every earlier holder had a lower one."""
        comparison = await self._acquirable()
        if comparison is None:
            return False
        epoch = await self._store.allocate_id(COUNTER)
        value = catalog_records.encode(LeaseRecord(epoch, self._owner))
        # Measured from before the request is sent: the store counts from a later moment, so this driver considers its
        # lease lost before the store gives it to another one.
        sent_ns = self._clock.monotonic_ns()
        revision = await self._put(comparison, value)
        if revision is None:
            return False
        self.epoch, self._value = epoch, value
        self._until_ns = sent_ns + self._ttl_ms * 1_000_000
        self._renewing = asyncio.create_task(self._renew(revision))
        return True

    async def _acquirable(self) -> cmd.Compare | None:
        """Returns the comparison under which the lease can be written; None while another driver holds it."""
        entry = await self._store.get(self._key)
        if entry is None:
            return cmd.Absent(self._key)
        is_ours = bool(self._owner) and catalog_records.decode(LeaseRecord, self._key, entry).owner == self._owner
        return cmd.HasValue(self._key, entry.value) if is_ours else None

    async def _put(self, comparison: cmd.Compare, value: bytes) -> int | None:
        """Writes the lease. Returns its revision, None if another driver was faster."""
        try:
            reply = await self._store.put_lease(comparison, value, self._ttl_ms)
        except errors.OutcomeUnknown:
            # The reply was lost. The value has an epoch that no other attempt has, so the record shows whether it was
            # written.
            entry = await self._store.get(self._key)
            return entry.mod_revision if entry is not None and entry.value == value else None
        return reply.revision if reply.held else None

    async def _renew(self, revision: int) -> None:
        """Renews the lease until it is lost or this task is cancelled."""
        while True:
            await self._clock.sleep(self._ttl_ms / 3000)
            sent_ns = self._clock.monotonic_ns()
            try:
                is_ours = await self._store.renew(self._key, revision)
            except errors.IcestreamError as error:
                _log.warning("pipeline lease not renewed", reason=error.message)
                # The lease is held until its time to live is over: retry until then.
                if self._clock.monotonic_ns() >= self._until_ns:
                    return
                continue
            if not is_ours:
                _log.warning("another pipeline has taken the lease", epoch=self.epoch)
                self._until_ns = 0
                return
            self._until_ns = sent_ns + self._ttl_ms * 1_000_000

    async def release(self) -> None:
        """Gives the lease up, so that the next driver need not wait. A lease that another driver holds stays. Can be
        called again after a cancellation."""
        # First of all, and also if the release below fails or is cancelled: no commit may begin from here on.
        self._until_ns = 0
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
        if self._value:
            with contextlib.suppress(errors.IcestreamError):  # it expires by itself
                await self._store.txn([cmd.HasValue(self._key, self._value)], [cmd.Delete(self._key)])
        self._value = b""
