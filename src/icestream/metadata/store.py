"""The interface of the metadata store, and its in-memory implementation.

    MemoryStore      the state machine alone: tests, `storage: memory`
    NodeStore        the state machine behind a log of its own (node_store.py): one voter, or several with Raft
    RemoteStore      over the local socket, for other processes of the node (remote_store.py)

A write without an answer (the connection broke, the log stopped) has an unknown outcome: OutcomeUnknown, never
"failed". A caller that wants to repeat such a write passes a client id (`client`) and numbers its commands
(`sequence`), one at a time: the repeat then gets the answer of the first. Comparisons report whether they held;
everything else raises.
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
    # --- to be implemented ---

    """The interface; `submit`, reads and watches differ by kind, the rest follows from them."""

    @abstractmethod
    async def ready(self) -> None:
        """Waits until the store serves. Before that every call raises NotReady."""

    @abstractmethod
    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        """Applies a command; it is durable when this returns."""

    @abstractmethod
    async def renew(self, key: str, revision: int) -> bool:
        """Extends a lease that was put (PutLease) at this revision by its whole duration; False if it is gone.

        It costs no entry of the log. After an error the lease may have been extended or not. After True the holder may
        rely on its duration, measured from before this call.
        """

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
    async def revision(self) -> int:
        """The present revision of the store."""

    @abstractmethod
    async def close(self) -> None:
        """Ends all watches and calls with LogClosed, and releases resources."""

    # --- derived ---

    async def put(self, key: str, value: bytes) -> int:
        """Puts a key; returns the revision."""
        return (await self._done(cmd.Put(key, value))).revision

    async def put_with_ttl(self, key: str, value: bytes, ttl_ms: int) -> int:
        """Puts a key that expires after `ttl_ms`; returns the revision."""
        return (await self._done(cmd.PutWithTtl(key, value, ttl_ms))).revision

    async def delete(self, key: str) -> int:
        """Deletes a key; returns the revision."""
        return (await self._done(cmd.Delete(key))).revision

    async def delete_prefix(self, prefix: str) -> int:
        """Deletes every key with the prefix, in as many commands as needed."""
        while (done := await self._done(cmd.DeletePrefix(prefix))).more:
            pass
        return done.revision

    async def compare_and_swap(self, compare: cmd.Compare, value: bytes, ttl_ms: int = 0) -> cmd.Done:
        """Puts the compared key if the comparison holds (`Done.held`); `ttl_ms` 0 for no expiry."""
        return await self._done(cmd.CompareAndSwap(compare, value, ttl_ms))

    async def put_lease(self, compare: cmd.Compare, value: bytes, ttl_ms: int) -> cmd.Done:
        """Puts a lease, which lives while it is renewed at the revision of the answer."""
        return await self.txn([compare], [cmd.PutLease(compare.key, value, ttl_ms)])

    async def allocate_id(self, counter: str, count: int = 1) -> int:
        """Allocates `count` unique numbers; returns the first."""
        return (await self._done(cmd.AllocateMonotonicId(counter, count))).first_id

    async def raise_counter(self, counter: str, at_least: int) -> None:
        """Lets a counter give out no number up to `at_least` any more."""
        entry = await self.get(f"{cmd.COUNTERS}{counter}")
        last = int(entry.value) if entry is not None else 0
        while last < at_least:
            count = min(at_least - last, limits.METADATA_IDS_PER_COMMAND_MAX)
            last = await self.allocate_id(counter, count) + count - 1

    async def txn(
        self,
        compare: Sequence[cmd.Compare],
        then: Sequence[cmd.Operation],
        otherwise: Sequence[cmd.Operation] = (),
    ) -> cmd.Done:
        """Applies `then` if every comparison holds (`Done.held`), else `otherwise`, in one revision."""
        return await self._done(cmd.Txn([*compare], [*then], [*otherwise]))

    async def list_all(self, prefix: str) -> Entries:
        """Lists all entries, page by page."""
        entries: Entries = []
        while page := await self.list(prefix, entries[-1][0] if entries else ""):
            entries += page
        return entries

    async def _done(self, command: cmd.Command) -> cmd.Done:
        """Submits a command. Raises the error of a rejected one."""
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
        self._tasks = Tasks(self._on_task_failed)
        self._expiry: Expiry | None = None
        self._closed: errors.LogClosed | None = None

    async def ready(self) -> None:
        self._check_open()

    async def submit(self, command: cmd.Command, client: bytes = b"", sequence: int = 0) -> cmd.Answer:
        self._check_open()
        applied = self._machine.apply(cmd.Envelope(cmd.VERSION, client, sequence, self._time.now_ms(), command))
        self._hub.publish(applied.events)
        self._check_deadlines()
        return applied.answer

    def _check_deadlines(self) -> None:
        """Starts the expiry task with the first key that has a deadline."""
        if self._expiry is not None:
            self._expiry.check()
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

    def _on_task_failed(self, error: BaseException) -> None:
        raise error
