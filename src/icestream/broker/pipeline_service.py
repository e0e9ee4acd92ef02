"""The broker's side of the pipeline: what is to be written, the files that a round holds, how far the tables are.

The driver asks over the local socket (internal_api/pipeline_calls.py), its tasks read log files over HTTP
(frontends/http). The broker knows nothing of tables (docs/adr/0025).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from icestream import errors, limits
from icestream.model.backlog_messages import Backlog, TopicBacklog
from icestream.model.shard import ShardKey
from icestream.observability.health import Check
from icestream.rpc import document
from icestream.runtime.clock import Clock
from icestream.wal.write_ahead_log import WriteAheadLog

Document = dict[str, Any]
Position = tuple[int, int, int]  # topic, shard, offset


class LogLocation(NamedTuple):
    """Where tasks find the log: its directory, or the broker's HTTP with a token."""

    directory: str
    address: str
    token: str


class PipelineService:
    def __init__(
        self, log: WriteAheadLog, clock: Clock, place: LogLocation, table_policy: Callable[[str, int], dict[str, str]]
    ) -> None:
        """`table_policy`: what the topic of this name and id says of its table, for the log does not know it."""
        self.log = log
        self.place = place
        self._clock = clock
        self._table_policy = table_policy
        self._state: Document | None = None
        self._told_ns = 0
        # by the clock, so that a driver that planned in an earlier life of the broker names none of this one
        self._began = self._reopenings = clock.wall_us()
        self._reopened: dict[ShardKey, int] = {}  # the last reopening of a shard
        self._went_back = asyncio.Event()
        self.on_told: Callable[[], None] | None = None  # somebody waits for news of the driver
        self.on_committed: Callable[[], None] | None = None  # floors have moved

    # --- what is to be written ---

    async def backlog(
        self, wait_ms: int = 0, files_max: int = limits.BACKLOG_FILES_MAX,
        leaving: asyncio.Event | None = None, passed_over: Set[int] = frozenset(),
    ) -> Backlog:  # fmt: skip
        """Returns what is in no table. Waits until there is something, `wait_ms` at most, and not after `leaving` is
        set. `passed_over`: topics of which only sums are returned, and that are not waited for."""
        until_ns = self._clock.monotonic_ns() + min(wait_ms, limits.BACKLOG_WAIT_MS_MAX) * 1_000_000
        files_max = max(1, min(files_max, limits.BACKLOG_FILES_MAX))
        await self.log.lifecycle.update_ballast()  # whoever asks is about to write to this disk
        while True:
            self._went_back.clear()
            reopenings, lsn = self._reopenings, await self.log.sync()
            is_late = self._clock.monotonic_ns() >= until_ns or (leaving is not None and leaving.is_set())
            found = await self.log.backlog.snapshot(files_max, passed_over)
            if found.topics or is_late:
                topics = [self._with_policy(topic) for topic in found.topics]
                log_id = self.log.log_id.hex()
                return Backlog(
                    log_id, *self.place, topics, found.files, found.is_cut, lsn, reopenings,
                    passed_over=found.passed_over,
                )  # fmt: skip
            if passed_over:
                look_ns = self._clock.monotonic_ns() + int(limits.BACKLOG_LOOK_SECONDS * 1e9)
                await self._wait(None, min(until_ns, look_ns), leaving)
            await self._wait(lsn + 1, until_ns, leaving)

    def _with_policy(self, topic: TopicBacklog) -> TopicBacklog:
        said = self._table_policy(topic.name, topic.topic_id)
        return msgspec.structs.replace(topic, policy=said) if said else topic

    async def _wait(self, lsn: int | None, until_ns: int, leaving: asyncio.Event | None) -> None:
        """Costs nothing meanwhile: the log's own news end it, unless `lsn` is None."""
        events = [self._went_back] if leaving is None else [self._went_back, leaving]
        waiting: set[asyncio.Future[Any]] = {asyncio.ensure_future(one.wait()) for one in events}
        if lsn is not None:
            waiting.add(asyncio.ensure_future(self.log.wait_released(lsn)))
        seconds = max(0.0, (until_ns - self._clock.monotonic_ns()) / 1e9)
        try:
            done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    # --- a round ---

    def lease(self, lease: str, epoch: int, files: Sequence[int], ttl_ms: int) -> None:
        """Raises PositionGone when a file is not there: then nothing is held."""
        if not 0 < ttl_ms <= limits.LEASE_TTL_MS_MAX and files:
            raise errors.InvalidInput(
                f"a lease of {ttl_ms} ms", hint=f"1 to {limits.LEASE_TTL_MS_MAX} ms are allowed: renew it"
            )
        if len(lease.encode()) > limits.NAME_BYTES_MAX or not lease:
            raise errors.InvalidInput("the name of a lease is empty or too long")
        there = self.log.lifecycle.numbers()
        gone = [number for number in files if number not in there]
        if gone:
            raise errors.PositionGone(f"log file {gone[0]} is not there any more", hint="the round is planned anew")
        self.log.lifecycle.leases.hold(lease, epoch, files, ttl_ms)

    async def copy(self, lease: str, number: int, start: int, end: int) -> bytes:
        """Bytes of a log file that the lease holds, from before the read to its end (hazard 29)."""
        self.log.lifecycle.leases.check(lease, number)
        found = await self.log.reader.copy(number, start, end)
        self.log.lifecycle.leases.check(lease, number)
        return found

    async def committed(self, positions: Sequence[Position], reopenings: int | None = None) -> None:
        """`reopenings`: of the backlog by which they are known; None: they are true now. A shard that went back since
        stays where it is: its table was moved meanwhile, and the next look at it finds where. So do all when the
        backlog is of an earlier life: nobody knows what went back then."""
        floors = self._known(positions)
        if reopenings is not None:
            known = self._reopened
            floors = {key: one for key, one in floors.items() if known.get(key, self._began) <= reopenings}
            floors = floors if reopenings <= self._reopenings else {}  # of an earlier life, whose clock was ahead
        await self.log.advance_floor(floors)
        if self.on_committed is not None:
            self.on_committed()

    async def reopen(self, positions: Sequence[Position]) -> list[Position]:
        """The tables end there, below what was committed (hazard 21). Where the floors are then."""
        wanted = self._known(positions)
        self._reopenings += 1
        self._reopened.update(dict.fromkeys(wanted, self._reopenings))
        floors = await self.log.floors.reopen(wanted)
        self._went_back.set()
        return [(*key, floor) for key, floor in floors.items()]

    def _known(self, positions: Sequence[Position]) -> dict[ShardKey, int]:
        """Shards that the log does not know are of no interest to it: it holds nothing of them."""
        if len(positions) > limits.PIPELINE_POSITIONS_MAX:
            raise errors.InvalidInput(
                f"{len(positions)} positions in one call", hint=f"at most {limits.PIPELINE_POSITIONS_MAX}: call again"
            )
        known = self.log.state.shards
        return {
            ShardKey(topic_id, shard): offset for topic_id, shard, offset in positions if (topic_id, shard) in known
        }

    # --- what the driver says of itself ---

    def tell(self, state: Document) -> None:
        document.encode(state, limits.PIPELINE_STATE_BYTES_MAX)
        self._state = state
        self._told_ns = self._clock.monotonic_ns()
        if self.on_told is not None:
            self.on_told()

    @property
    def state(self) -> Document:
        return {"state": self._state, "age_ms": self._age_ms if self._state is not None else None}

    @property
    def _age_ms(self) -> int:
        return (self._clock.monotonic_ns() - self._told_ns) // 1_000_000

    def check(self) -> Check | None:
        """None while no driver has said anything. `ok` and `reason` of its state are shown."""
        if self._state is None:
            return None
        if self._age_ms > limits.PIPELINE_SILENT_SECONDS * 1000:
            return Check("ingest", False, f"the pipeline said nothing for {self._age_ms // 1000} s", is_needed=False)
        return Check("ingest", bool(self._state.get("ok", True)), str(self._state.get("reason", "")), is_needed=False)
