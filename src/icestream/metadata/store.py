"""The interface of the metadata store, whatever implements it.

    MemoryStore      the state machine alone: tests, `storage: memory`
    NodeStore        the state machine behind a log of its own (node_store.py): one voter now, several with Raft
    a client         over the local socket, for other processes of the node

A write that was given up on (the connection broke, the log stopped) has an unknown outcome: OutcomeUnknown, never
"failed". Who wants to repeat such a write names itself (`client`) and numbers its commands (`sequence`), one at a time:
the repeat then gets the answer of the first. Comparisons say whether they held; everything else raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from enum import Enum

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.expiry import Expiry
from icestream.metadata.leases import Leases
from icestream.metadata.state_machine import StateMachine
from icestream.metadata.store_time import StoreTime
from icestream.metadata.watch import Changes, Resync, WatchHub
from icestream.runtime.clock import Clock, SystemClock
from icestream.runtime.tasks import Tasks

Entries = list[tuple[str, Entry]]


class Consistency(Enum):
    """The consistency of a read (node_store.py). Only a NodeStore offers less than linearizable."""

    LINEARIZABLE = "linearizable"
    SESSION = "session"
    STALE = "stale"


class MetadataStore(ABC):
    # --- what a kind of store must do ---

    @abstractmethod
    async def ready(self) -> None:
        """Waits until the store serves. Before that every call raises NotReady."""

    @abstractmethod
    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        """Applies a command; it is durable when this returns."""

    @abstractmethod
    async def renew(self, key: str, revision: int) -> bool:
        """Keeps a lease that was put (PutLease) at this revision for its whole time from now on; False when it is gone.

        It costs no entry of the log. Whatever is raised: the lease may have been kept, or not. Whoever holds it may
        rely on its time from before this call, when True came back."""

    @abstractmethod
    async def get(self, key: str) -> Entry | None:
        """Reads a key. Reads are linearizable: they see every write that was acknowledged before."""

    @abstractmethod
    async def list(self, prefix: str, after: str = "", limit: int = limits.METADATA_LIST_MAX) -> Entries:
        """Lists entries with a prefix in order of keys greater than `after`; at most METADATA_LIST_MAX."""

    @abstractmethod
    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes | Resync]:
        """Watches changes with a prefix, of revisions above `after`, without end."""

    @abstractmethod
    async def revision(self) -> int: ...

    @abstractmethod
    async def close(self) -> None: ...

    # --- what follows from that ---

    async def put(self, key: str, value: bytes) -> int:
        return (await self._done(cmd.Put(key, value))).revision

    async def put_with_ttl(self, key: str, value: bytes, ttl_ms: int) -> int:
        return (await self._done(cmd.PutWithTtl(key, value, ttl_ms))).revision

    async def delete(self, key: str) -> int:
        return (await self._done(cmd.Delete(key))).revision

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes every key with the prefix, in as many commands as needed."""
        while (done := await self._done(cmd.DeletePrefix(prefix))).more:
            pass
        return done.revision

    async def compare_and_swap(self, compare: cmd.Compare, value: bytes, ttl_ms: int = 0) -> cmd.Done:
        return await self._done(cmd.CompareAndSwap(compare, value, ttl_ms))

    async def put_lease(self, compare: cmd.Compare, value: bytes, ttl_ms: int) -> cmd.Done:
        """Puts a lease, which lives while it is renewed at the revision of the answer."""
        return await self.txn([compare], [cmd.PutLease(compare.key, value, ttl_ms)])

    async def allocate_id(self, counter: str, count: int = 1) -> int:
        """Allocates `count` unique numbers; returns the first."""
        return (await self._done(cmd.AllocateMonotonicId(counter, count))).first_id

    async def txn(
        self,
        compare: Sequence[cmd.Compare],
        then: Sequence[cmd.Operation],
        otherwise: Sequence[cmd.Operation] = (),
    ) -> cmd.Done:
        return await self._done(cmd.Txn([*compare], [*then], [*otherwise]))

    async def list_all(self, prefix: str) -> Entries:
        """Lists all entries, page by page."""
        entries: Entries = []
        while page := await self.list(prefix, entries[-1][0] if entries else ""):
            entries += page
        return entries

    async def _done(self, command: cmd.Command) -> cmd.Done:
        answer = await self.submit(command)
        if isinstance(answer, cmd.Rejected):
            kind = errors.BY_CODE.get(answer.code, errors.InvalidInput)
            raise kind(answer.message)
        return answer


class MemoryStore(MetadataStore):
    """The state machine in memory, without a log."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._machine = StateMachine()
        self._time = StoreTime.from_wall(self._clock, 0)
        self._leases = Leases(self._machine, self._time)
        self._hub = WatchHub(0)
        self._tasks = Tasks(self._task_failed)
        self._expiry: Expiry | None = None
        self._closed: errors.LogClosed | None = None

    async def ready(self) -> None:
        self._check_open()

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        self._check_open()
        applied = self._machine.apply(cmd.Envelope(cmd.VERSION, client, sequence, self._time.now_ms(), command))
        self._hub.publish(applied.events)
        self._look_at_deadlines()
        return applied.answer

    def _look_at_deadlines(self) -> None:
        """Starts the expiry task with the first key that has a deadline."""
        if self._expiry is not None:
            self._expiry.look()
        elif self._machine.next_deadline_ms is not None or self._machine.leases:
            self._expiry = Expiry(self._machine, self._clock, self._time, self._leases, self.submit)
            self._tasks.start(self._expiry.run(), "metadata-expiry")

    async def renew(self, key: str, revision: int) -> bool:
        self._check_open()
        return self._leases.renew(key, revision)

    async def get(self, key: str) -> Entry | None:
        self._check_open()
        return self._machine.get(key)

    async def list(self, prefix: str, after: str = "", limit: int = limits.METADATA_LIST_MAX) -> Entries:
        self._check_open()
        return self._machine.page(prefix, after, min(limit, limits.METADATA_LIST_MAX))

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changes | Resync]:
        self._check_open()
        return self._hub.watch(prefix, after)

    async def revision(self) -> int:
        self._check_open()
        return self._machine.revision

    async def close(self) -> None:
        if self._closed is None:
            self._closed = errors.LogClosed("the metadata store is closed")
            self._hub.end(self._closed)
            await self._tasks.stop()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _task_failed(self, error: BaseException) -> None:
        raise error
