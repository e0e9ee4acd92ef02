"""The broker's service for the pipeline: the uncommitted backlog, leases of log files, committed offsets.

The driver calls it over the local socket (internal_api/pipeline_calls.py), its tasks read log files over HTTP
(frontends/http). The broker itself does not read or write tables (docs/adr/0025).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.model.backlog_messages import Backlog, ConsumedOffsets, RetainedTopic, TopicBacklog
from icestream.model.shard import ShardKey
from icestream.observability.health import Check
from icestream.rpc import document
from icestream.runtime.clock import Clock
from icestream.wal.write_ahead_log import WriteAheadLog

Document = dict[str, Any]
Position = tuple[int, int, int]  # topic, shard, offset


class LogLocation(NamedTuple):
    """Where tasks read the log: its directory, or the broker's HTTP address with a token of their round."""

    directory: str
    address: str
    secret: str  # of this process: the tokens of rounds are derived from it


class PipelineService:
    """What the driver and the tasks of the pipeline may ask this broker for.

    A *reopening* moves committed offsets back, because a table was rewound. Reopenings are numbered, and each backlog
    carries the number of the last one: committed offsets that were planned before a later reopening are not applied.
    """

    def __init__(
        self,
        log: WriteAheadLog,
        clock: Clock,
        location: LogLocation,
        table_policy: Callable[[str, int], dict[str, str]],
        retained_topics: Callable[[], list[RetainedTopic]] = list,
        consumed: Callable[[Collection[int]], Awaitable[list[ConsumedOffsets]]] | None = None,
    ) -> None:
        """`table_policy`: the layout policies of the table of the topic with this name and id. `retained_topics`:
        returns the next topics with a retention. `consumed`: returns what all consumers of topics have acked."""
        self.log = log
        self.location = location
        self._clock = clock
        self._table_policy = table_policy
        self._retained_topics = retained_topics
        self._consumed = consumed
        self._state: Document | None = None
        self._reported_ns = 0
        # Starts at the clock, so that numbers which a driver got from an earlier process of this broker are lower.
        self._first_reopening = self._reopenings = clock.wall_us()
        self._reopened: dict[ShardKey, int] = {}  # the last reopening of a shard
        self._was_reopened = asyncio.Event()
        self.certificate: Callable[[], str] = (
            str  # the digest of the certificate at the HTTP address, empty without TLS
        )
        # The cut of the last erasure of a shard: its committed offset does not go below it.
        self.erased_below: Callable[[ShardKey], int] = lambda key: 0
        self.on_report: Callable[[], None] | None = None  # called after each report of the driver
        self.on_committed: Callable[[], None] | None = None  # called after committed offsets have moved

    # --- the backlog ---

    async def backlog(
        self, wait_ms: int = 0, files_max: int = limits.BACKLOG_FILES_MAX,
        leaving: asyncio.Event | None = None, passed_over: Set[int] = frozenset(),
    ) -> Backlog:  # fmt: skip
        """The uncommitted messages of all topics.

        Waits until there are some; at most `wait_ms`, and not longer than the caller is connected (`leaving`).

        `passed_over`: topics that are reported as sums only and not waited for.
        """
        until_ns = self._clock.monotonic_ns() + min(wait_ms, limits.BACKLOG_WAIT_MS_MAX) * 1_000_000
        files_max = max(1, min(files_max, limits.BACKLOG_FILES_MAX))
        await self.log.lifecycle.update_ballast()  # the caller is about to write to this disk
        while True:
            # The event and the number before the snapshot: a reopening during it makes the wait below return at once,
            # and the snapshot is then known to be older than it.
            self._was_reopened.clear()
            reopenings, lsn = self._reopenings, await self.log.sync()  # only synced messages may be committed
            is_late = self._clock.monotonic_ns() >= until_ns or (leaving is not None and leaving.is_set())
            backlog = await self.log.backlog.snapshot(files_max, passed_over)
            if backlog.topics or is_late:
                topics = [self._with_policy(topic) for topic in backlog.topics]
                log_id = self.log.log_id.hex()
                return Backlog(
                    log_id, self.location.directory, self.location.address, self.certificate(), topics, backlog.files,
                    backlog.is_cut, lsn, reopenings, passed_over=backlog.passed_over,
                    retained=self._retained_topics(),
                )  # fmt: skip
            if passed_over:
                # Records of topics that are passed over would end the wait for the next LSN again and again: without a
                # pause their producers would make this a busy loop.
                look_ns = self._clock.monotonic_ns() + int(limits.BACKLOG_LOOK_SECONDS * 1e9)
                await self._wait(None, min(until_ns, look_ns), leaving)
            await self._wait(lsn + 1, until_ns, leaving)

    def _with_policy(self, topic: TopicBacklog) -> TopicBacklog:
        """The backlog of a topic with the layout policies of its table: the driver creates missing tables by them."""
        policy = self._table_policy(topic.name, topic.topic_id)
        return msgspec.structs.replace(topic, policy=policy) if policy else topic

    async def _wait(self, lsn: int | None, until_ns: int, leaving: asyncio.Event | None) -> None:
        """Waits for a record with this LSN (unless None), a reopened shard, or the caller to leave; without polling."""
        events = [self._was_reopened] if leaving is None else [self._was_reopened, leaving]
        waiting: set[asyncio.Future[Any]] = {asyncio.ensure_future(event.wait()) for event in events}
        if lsn is not None:
            waiting.add(asyncio.ensure_future(self.log.wait_released(lsn)))
        seconds = max(0.0, (until_ns - self._clock.monotonic_ns()) / 1e9)
        try:
            done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()  # raises if the log has stopped
        finally:
            for future in waiting:
                future.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def consumed(self, topic_ids: Collection[int]) -> list[ConsumedOffsets]:
        """What all consumers of these topics have acked; without topics of which that is not known."""
        if len(topic_ids) > limits.RETAINED_TOPICS_MAX:
            raise errors.InvalidInput(
                f"{len(topic_ids)} topics in one call", hint=f"at most {limits.RETAINED_TOPICS_MAX}: call again"
            )
        return [] if self._consumed is None else await self._consumed(topic_ids)

    # --- leases and committed offsets ---

    def lease(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> None:
        """Holds log files for a round. Raises PositionGone if a file is gone: then nothing is held; InvalidInput."""
        # Without files the lease is given up: its time to live does not matter then.
        if not 0 < ttl_ms <= limits.LEASE_TTL_MS_MAX and files:
            raise errors.InvalidInput(
                f"invalid time to live of a lease: {ttl_ms} ms",
                hint=f"1 to {limits.LEASE_TTL_MS_MAX} ms; renew it in time",
            )
        if len(lease.encode()) > limits.NAME_BYTES_MAX or not lease:
            raise errors.InvalidInput(
                f"the name of a lease is empty or too long: {lease[:40]!r}",
                hint=f"1 to {limits.NAME_BYTES_MAX} bytes are possible",
            )
        # All or nothing: a round that lacks one of its files is planned again, and must not hold the others meanwhile.
        present = self.log.lifecycle.numbers()
        missing = [number for number in files if number not in present]
        if missing:
            raise errors.PositionGone(f"log file {missing[0]} no longer exists", hint="plan the round again")
        self.log.lifecycle.leases.hold(lease, epoch, files, ttl_ms)

    def round_token(self, lease: str) -> str:
        """The token by which the tasks of a round read the log. The names of leases are unique, so that it opens the
        files of this lease, while it lasts, and no others (ADR 77)."""
        return hmac.new(self.location.secret.encode(), lease.encode(), hashlib.sha256).hexdigest()

    async def copy(self, lease: str, number: int, start: int, end: int) -> bytes:
        """Bytes of a log file, which the lease must hold from before the read to its end (hazard 29)."""
        self.log.lifecycle.leases.check(lease, number)
        data = await self.log.reader.copy(number, start, end)
        # Again: if the lease ended during the read, the file may have been recycled under it.
        self.log.lifecycle.leases.check(lease, number)
        return data

    async def committed(self, positions: Sequence[Position], reopenings: int | None = None) -> None:
        """Advances the committed offsets of shards.

        `reopenings`: the number in the backlog from which the positions were planned; None if they are current. A shard
        that was reopened since is left alone: its table was rewound meanwhile, and the next round finds out to where.
        So are all shards if the backlog came from an earlier process, whose reopenings are unknown.
        """
        floors = self._local_positions(positions)
        if reopenings is not None:
            last = self._reopened
            floors = {key: end for key, end in floors.items() if last.get(key, self._first_reopening) <= reopenings}
            floors = floors if reopenings <= self._reopenings else {}  # an earlier process whose clock was ahead
        await self.log.advance_floor(floors)
        if self.on_committed is not None:
            self.on_committed()

    async def reopen(self, positions: Sequence[Position]) -> list[Position]:
        """Moves committed offsets back to where tables end after a rewind (hazard 21); returns where they are then."""
        # Everything below the cut of an erasure stays committed: the log may still have erased messages there.
        targets = {key: max(offset, self.erased_below(key)) for key, offset in self._local_positions(positions).items()}
        # Counted before the floors move: offsets that were planned before must not be applied from now on.
        self._reopenings += 1
        self._reopened.update(dict.fromkeys(targets, self._reopenings))
        floors = await self.log.floors.reopen(targets)
        self._was_reopened.set()
        return [(*key, floor) for key, floor in floors.items()]

    def _local_positions(self, positions: Sequence[Position]) -> dict[ShardKey, int]:
        """The positions of shards in this node's log; it holds nothing of the others."""
        if len(positions) > limits.PIPELINE_POSITIONS_MAX:
            raise errors.InvalidInput(
                f"{len(positions)} positions in one call", hint=f"at most {limits.PIPELINE_POSITIONS_MAX}: call again"
            )
        local = self.log.state.shards
        return {
            ShardKey(topic_id, shard): offset for topic_id, shard, offset in positions if (topic_id, shard) in local
        }

    # --- the reported state of the driver ---

    def report(self, state: Document) -> None:
        """Keeps the state that the driver reports of itself. Raises InvalidInput if it is too large."""
        document.encode(state, limits.PIPELINE_STATE_BYTES_MAX)
        self._state = state
        self._reported_ns = self._clock.monotonic_ns()
        if self.on_report is not None:
            self.on_report()

    @property
    def state(self) -> Document:
        """The last report of the driver and its age; both None before the first one."""
        return {"state": self._state, "age_ms": self._age_ms if self._state is not None else None}

    @property
    def _age_ms(self) -> int:
        return (self._clock.monotonic_ns() - self._reported_ns) // 1_000_000

    def check(self) -> Check | None:
        """The health of the pipeline by the driver's last report; None before the first one."""
        if self._state is None:
            return None
        if self._age_ms > limits.PIPELINE_SILENT_SECONDS * 1000:
            return Check("ingest", False, f"no report from the pipeline for {self._age_ms // 1000} s", is_needed=False)
        return Check("ingest", bool(self._state.get("ok", True)), str(self._state.get("reason", "")), is_needed=False)
