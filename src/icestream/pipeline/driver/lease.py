"""The lease of the driver: one pipeline commits at a time, and every commit says under which epoch (hazards 1, 25).

`/pipeline/lease` in the metadata store: a lease (metadata/leases.py), whose value is the epoch. In a cluster each node
has a pipeline of its own for the topics of its log, and a lease below that key (ADR 32). A renewal writes nothing; our
own catalog compares the value in the transaction of each commit. Two drivers at once lose nothing: the older one's
commits are refused.

    free     --take: the key is not there-->                held
    held     --renewed in time-->                           held
    held     --not renewed, or another value is there-->    lost: nothing is committed any more
    held     --given up, because there is nothing to do-->  free: an idle pipeline writes nothing

How long it is held is measured on the monotonic clock, from before the renewal was sent. Whoever takes over waits until
the key is gone, unless the holder was the same child of the same broker: that one is dead, its parent says so.
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
    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        owner: str = "",
        ttl_ms: int = limits.PIPELINE_LEASE_TTL_MS,
        name: str = "",
    ) -> None:
        """`owner`: a name that only one driver at a time can have, such as that of a child of its broker; or none.
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
        """The epoch. Raises LeaseLost when it is not certain any more that it is ours."""
        if not self.is_held:
            raise errors.LeaseLost(
                "the lease of the pipeline was lost", hint="another driver has it, or the broker was away too long"
            )
        return self.epoch

    async def take(self) -> None:
        """Waits until it is ours. Nothing happens when it is."""
        if self.is_held:
            return
        await self.give_up()
        waited = False
        while not await self._taken():
            if not waited:
                _log.info("another pipeline has the lease: waiting for it")
                waited = True
            await self._clock.sleep(self._ttl_ms / 3000)

    async def _taken(self) -> bool:
        """The epoch is new with each try: whoever had the lease while we waited had a lower one."""
        compare = await self._free_or_ours()
        if compare is None:
            return False
        epoch = await self._store.allocate_id(COUNTER)
        value = catalog_records.encode(LeaseRecord(epoch, self._owner))
        sent_ns = self._clock.monotonic_ns()
        revision = await self._put(compare, value)
        if revision is None:
            return False
        self.epoch, self._value = epoch, value
        self._until_ns = sent_ns + self._ttl_ms * 1_000_000
        self._renewing = asyncio.create_task(self._renew(revision))
        return True

    async def _free_or_ours(self) -> cmd.Compare | None:
        """What must hold for us to take it. None: another one has it."""
        entry = await self._store.get(self._key)
        if entry is None:
            return cmd.Absent(self._key)
        is_ours = bool(self._owner) and catalog_records.decode(LeaseRecord, self._key, entry).owner == self._owner
        return cmd.HasValue(self._key, entry.value) if is_ours else None

    async def _put(self, compare: cmd.Compare, value: bytes) -> int | None:
        """The revision of the lease when it is ours."""
        try:
            done = await self._store.put_lease(compare, value, self._ttl_ms)
        except errors.OutcomeUnknown:
            entry = await self._store.get(self._key)
            return entry.mod_revision if entry is not None and entry.value == value else None
        return done.revision if done.held else None

    async def _renew(self, revision: int) -> None:
        """Until it is lost, or nobody wants it any more."""
        while True:
            await self._clock.sleep(self._ttl_ms / 3000)
            sent_ns = self._clock.monotonic_ns()
            try:
                is_ours = await self._store.renew(self._key, revision)
            except errors.IcestreamError as error:
                _log.warning("the lease of the pipeline was not renewed", reason=error.message)
                if self._clock.monotonic_ns() >= self._until_ns:
                    return
                continue
            if not is_ours:
                _log.warning("another pipeline has taken the lease", epoch=self.epoch)
                self._until_ns = 0
                return
            self._until_ns = sent_ns + self._ttl_ms * 1_000_000

    async def give_up(self) -> None:
        """So that the next one need not wait. A lease that is not ours stays. Cut off, it can be called again."""
        self._until_ns = 0
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
            self._renewing = None
        if self._value:
            with contextlib.suppress(errors.IcestreamError):  # it ends by itself
                await self._store.txn([cmd.HasValue(self._key, self._value)], [cmd.Delete(self._key)])
        self._value = b""
