"""The session log: transactions appended to a shard, folded by a start, and kept short by writing sessions again.

    write     check against the table -> encode -> append, with a message in the same WAL record where there is one ->
              apply. The receipt is settled when the storage's sync mode allows an ack; `write_durable` waits for the
              sync in every mode
    stage     check and apply now, append with everything else that is staged in this turn of the loop as one block. A
              caller that needs the sync gets a callback; what may be late (acks, positions) waits for the next write
              of the node, SESSION_LAZY_SECONDS at most. While the storage takes nothing, records wait in their order
    open      read the shard from its oldest readable offset, fold every block
    compact   a session is written again as one block (SessionState.records), which replaces all before it
    refresh   the same for sessions whose block lies in an old log file: topics that are published to fill files, and a
              file is freed only when nothing needs it. Called in intervals, with a bound of bytes

The *base* of a session is the block in which it was last written whole; that of the node's own records is the last
block with a BEAT, which has all marks too. The floor of the shard is the lowest base: a start needs nothing below it.
When more than SESSION_LOG_FACTOR times the bytes of all bases (and a little) lie above the floor, each write makes the
oldest bases new until it has written as many bytes again as its own; so the log stays within a factor of the live
state, and nothing pauses.

The table is ahead of the disk by what is in flight. After a failed append it is no longer what the log holds: the log
refuses every write from then on, and is opened again (ADR 60).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, islice, takewhile
from typing import NamedTuple

from icestream import errors, limits
from icestream.durable import session_records as rec
from icestream.durable.session_records import AnyRecord, decode_transaction, encode_transaction
from icestream.durable.session_state import SessionTable
from icestream.durable.shard_storage import DurableStorage
from icestream.model.block import NOT_NUMBERED, decode_block_head, iter_blocks
from icestream.model.block_group import BlockGroup
from icestream.model.shard import GapState, ShardKey
from icestream.wal.appender import PlacedGroup
from icestream.wal.receipt import Receipt


class StoredBlock(NamedTuple):
    """A block of messages and its shard, to be stored with a transaction."""

    shard: ShardKey
    block: bytes


class _Staged(NamedTuple):
    """Records that are applied and not appended yet; they stay in one block."""

    records: Sequence[AnyRecord]
    on_durable: Callable[[], None] | None


class _Base(NamedTuple):
    """Where a block begins, its bytes, and about which log file it is in: 0 for what a start has read."""

    offset: int
    size: int
    file_number: int = 0


class SessionLog:
    """The sessions of one node and their log. `open` creates it."""

    def __init__(self, storage: DurableStorage, shard: ShardKey) -> None:
        """Use `open`: a log that was not read must not be written."""
        self.table = SessionTable()
        self._storage = storage
        self._shard = shard
        self._bases: dict[int, _Base] = {}  # by session id, rising by offset
        self._base_bytes = 0
        self._blocks: deque[_Base] = deque()  # all blocks from the floor on
        self.held_bytes = 0  # of these blocks
        self._rewriting: set[int] = set()  # sessions whose next base is in flight
        self._failure: errors.IcestreamError | None = None
        self._stored_ids: set[int] = set()  # sessions of which the log has, or will have, a SESSION record
        self._staged: deque[_Staged] = deque()
        self._flush: asyncio.Handle | None = None
        # Calls `flush` after so many seconds, on the clock of the owner; at once where there is none.
        self.flush_later: Callable[[float], None] = lambda seconds: self._flush_soon()
        self._syncs: set[asyncio.Task[None]] = set()
        # Called once when an append has failed: the table is not what the log holds any more.
        self.on_failed: Callable[[errors.IcestreamError], None] = lambda error: None

    @classmethod
    async def open(cls, storage: DurableStorage, shard: ShardKey) -> SessionLog:
        """Reads the log. Raises LogDamaged if a part of it was lost or is not a transaction."""
        log = cls(storage, shard)
        stream = storage.shard_stream(shard)
        offset = stream.log_start()
        while offset < stream.visible:
            read = await stream.read(offset, limits.SESSION_LOG_READ_BYTES)
            for gap in read.gaps:
                # Offsets that no sync had confirmed hold nothing that was told to a client; others do.
                if gap.state is not GapState.UNUSED:
                    raise errors.LogDamaged(
                        f"offsets [{gap.start}, {gap.end}) of the session log are lost: {gap.reason}",
                        hint="sessions of this node cannot be trusted; restore the log, or remove its sessions",
                    )
            for section in read.sections:
                log._replay(section.base_offset, section.body, offset)
            offset = read.next_offset
        return log

    def _replay(self, base_offset: int, body: bytes, start: int) -> None:
        offset = base_offset
        for block in iter_blocks(body):
            if offset >= start:
                try:
                    records = decode_transaction(block)
                except errors.DecodeError as error:
                    raise errors.LogDamaged(
                        f"the block at offset {offset} of the session log cannot be read: {error.message}",
                        hint="a newer version of Icestream may have written it: use that version",
                    ) from error
                self.table.apply(records)
                self._note_sessions(records)
                self._note_stored(records, offset, block.block_bytes, 0)
            offset += block.rows

    def is_stored(self, session_id: int) -> bool:
        """True if the log has records of the session: it is durable, or has a will."""
        return session_id in self._stored_ids

    def _note_sessions(self, records: Sequence[AnyRecord]) -> None:
        for record in records:
            if isinstance(record, rec.SessionRecord):
                self._stored_ids.add(record.session_id)
            elif isinstance(record, rec.SessionEnded):
                self._stored_ids.discard(record.session_id)

    # --- writes ---

    def write(
        self,
        records: Sequence[AnyRecord],
        message: StoredBlock | None = None,
        on_durable: Callable[[], None] | None = None,
    ) -> Receipt:
        """Appends a transaction and applies it; with `message` in one WAL record: both are stored, or none (hazard 63).

        Raises SessionFenced or Contradiction if it may not be appended, Refused if the storage takes nothing now: then
        nothing is changed. The one result of the receipt is a PlacedGroup; its first offset is that of the message, or
        of the transaction if there is none.
        """
        self._check_open()
        self.flush()
        if self._staged:  # they would be overtaken
            raise errors.InFlightFull("the session log waits for room in the log", hint="send again in a moment")
        self.table.check(records)
        transaction = encode_transaction(records)
        # Before the table: a refusal changes nothing.
        receipt = self._append(records, transaction, message)
        if on_durable is not None:
            receipt.add_done_callback(partial(self._appended, [on_durable]))
        self.table.apply(records)
        self._note_sessions(records)
        self._compact(len(transaction))
        return receipt

    async def write_durable(self, records: Sequence[AnyRecord], message: StoredBlock | None = None) -> PlacedGroup:
        """As `write`, and waits until it is synced, in every sync mode (hazard 54)."""
        (result,) = await self.write(records, message)
        await self._storage.wait_durable()
        assert isinstance(result, PlacedGroup)
        return result

    def stage(
        self, records: Sequence[AnyRecord], on_durable: Callable[[], None] | None = None, *, is_lazy: bool = False
    ) -> None:
        """Applies records now and appends them with the others of this turn of the loop, in the order of the calls.

        `on_durable`: called when they are synced, in every sync mode; None if nothing waits for that. `is_lazy`: they
        may be appended later, because a crash that forgets them does no more than repeat something. Raises
        SessionFenced or Contradiction, LogClosed after a failed append.
        """
        self._check_open()
        if not records:
            assert on_durable is None, "nothing becomes durable without a record"
            return
        self.table.check(records)
        self.table.apply(records)
        self._note_sessions(records)
        self._staged.append(_Staged(records, on_durable))
        if not is_lazy:
            self._flush_soon()
        elif self._flush is None:
            self.flush_later(limits.SESSION_LAZY_SECONDS)

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Appends what is staged now; what the storage refuses is tried again in a moment."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        while self._staged and self._failure is None:
            # Groups are not divided: their records apply together.
            count = total = 0
            for staged in self._staged:
                if count and total + len(staged.records) > limits.SESSION_BLOCK_RECORDS:
                    break
                count, total = count + 1, total + len(staged.records)
            group = list(islice(self._staged, count))
            records = [record for staged in group for record in staged.records]
            try:
                transaction = encode_transaction(records)
                receipt = self._append(records, transaction)
            except errors.Refused:
                # They are applied already, so they are not refused but wait, and everything later waits behind them.
                self.flush_later(limits.SESSION_RETRY_SECONDS)
                return
            except errors.IcestreamError as error:
                self._fail(error)
                return
            for _ in group:
                self._staged.popleft()
            callbacks = [staged.on_durable for staged in group if staged.on_durable is not None]
            if callbacks:
                receipt.add_done_callback(partial(self._appended, callbacks))
            self._compact(len(transaction))

    def _appended(self, callbacks: Sequence[Callable[[], None]], receipt: Receipt) -> None:
        """Calls back at once if the block is synced, else behind the sync that `wait_durable` makes for all."""
        if receipt.exception() is not None:
            return
        stream = self._storage.shard_stream(self._shard)
        if stream.synced >= stream.visible:
            for callback in callbacks:
                callback()
            return
        task = asyncio.get_running_loop().create_task(self._call_when_synced(callbacks), name="session log sync")
        self._syncs.add(task)
        task.add_done_callback(self._syncs.discard)

    async def _call_when_synced(self, callbacks: Sequence[Callable[[], None]]) -> None:
        try:
            await self._storage.wait_durable()
        except errors.IcestreamError as error:
            self._fail(error)
            return
        for callback in callbacks:
            callback()

    async def close(self) -> None:
        """Appends what is staged and waits until it is synced; what the storage refuses now is lost with a warning."""
        self.flush()
        if self._flush is not None:
            self._flush.cancel()
        if self._failure is None:
            await self._storage.wait_durable()
        while self._syncs:
            await asyncio.wait(self._syncs)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise errors.LogClosed(
                f"the session log failed: {self._failure.message}", hint="sessions are read again from the log"
            )

    def _fail(self, error: errors.IcestreamError) -> None:
        if self._failure is None:
            self._failure = error
            self.on_failed(error)

    def _append(self, records: Sequence[AnyRecord], transaction: bytes, message: StoredBlock | None = None) -> Receipt:
        stored = [StoredBlock(self._shard, transaction)]
        if message is not None:
            stored.insert(0, message)
        shards, blocks = [item.shard for item in stored], [item.block for item in stored]
        receipt = self._storage.store_group(shards, blocks, _group_of(blocks))
        receipt.add_done_callback(partial(self._settled, records, len(transaction), len(stored) - 1))
        return receipt

    def _settled(self, records: Sequence[AnyRecord], size: int, index: int, receipt: Receipt) -> None:
        error = receipt.exception()
        if error is not None:
            self._fail(error)
            return
        (result,) = receipt.result()
        assert isinstance(result, PlacedGroup)
        self._note_stored(records, result.base_offsets[index], size, self._storage.log_file_number)

    # --- compaction ---

    @property
    def floor(self) -> int:
        """The lowest offset that a start needs."""
        first = next(iter(self._bases.values()), None)
        return first.offset if first is not None else self._storage.shard_stream(self._shard).visible

    async def release(self) -> None:
        """Lets the storage free what is below the floor."""
        stream = self._storage.shard_stream(self._shard)
        await self._storage.release({self._shard: min(self.floor, stream.synced)})

    def _compact(self, bytes_max: int) -> None:
        """Writes the oldest bases again while the log is too long, about `bytes_max` bytes of them."""
        bound = limits.SESSION_LOG_FACTOR * self._base_bytes + limits.SESSION_LOG_SLACK_BYTES
        if self.held_bytes <= bound:
            return
        for session_id in list(islice(self._bases, limits.SESSION_LOG_REWRITES_MAX)):
            if bytes_max <= 0:
                return
            bytes_max -= self._rewrite(session_id)

    async def refresh(self, bytes_max: int) -> None:
        """Writes sessions again whose blocks lie in old log files, about `bytes_max` bytes, in slices between which the
        loop has other turns. Raises Refused."""
        newest = self._storage.log_file_number
        # Bases rise by offset: behind the first one in a recent file there is none in an old file.
        old = takewhile(lambda entry: entry[1].file_number < newest - 1, self._bases.items())
        for number, session_id in enumerate([session_id for session_id, _ in old], 1):
            if bytes_max <= 0 or self._failure is not None:
                return
            bytes_max -= self._rewrite(session_id)
            if not number % limits.SESSION_REFRESH_SLICE:
                await asyncio.sleep(0)

    def _rewrite(self, session_id: int) -> int:
        """Appends a session, or the records of the node, whole; returns the bytes."""
        if session_id in self._rewriting or (session_id and session_id not in self.table.sessions):
            return 0
        session = self.table.sessions.get(session_id)
        records = list(session.records() if session is not None else self.table.node_records())
        transaction = encode_transaction(records)
        self._rewriting.add(session_id)
        try:
            self._append(records, transaction)
        except errors.IcestreamError:
            self._rewriting.discard(session_id)
            raise
        return len(transaction)

    def _note_stored(self, records: Sequence[AnyRecord], offset: int, size: int, file_number: int) -> None:
        """Notes a stored block: which sessions it holds whole, and which ended."""
        block = _Base(offset, size, file_number)
        self._blocks.append(block)
        self.held_bytes += size
        for record in records:
            match record:
                case rec.SessionRecord() | rec.NodeBeat():
                    self._drop_base(record.session_id)
                    self._rewriting.discard(record.session_id)
                    # The session may have ended while its block was in flight: a base would hold the log for nothing.
                    if not record.session_id or record.session_id in self.table.sessions:
                        self._bases[record.session_id] = block
                        self._base_bytes += size
                case rec.SessionEnded():
                    self._drop_base(record.session_id)
        floor = next(iter(self._bases.values())).offset if self._bases else offset + len(records)
        while self._blocks and self._blocks[0].offset < floor:
            self.held_bytes -= self._blocks.popleft().size

    def _drop_base(self, session_id: int) -> None:
        base = self._bases.pop(session_id, None)
        if base is not None:
            self._base_bytes -= base.size


def _group_of(blocks: Sequence[bytes]) -> BlockGroup:
    """The group of these blocks: one for each shard, not numbered."""
    count = len(blocks)
    rows = [decode_block_head(block).rows for block in blocks]
    unnumbered = [NOT_NUMBERED] * count
    return BlockGroup(
        list(accumulate(map(len, blocks))), rows, unnumbered, [0] * count, unnumbered, range(1, count + 1)
    )
