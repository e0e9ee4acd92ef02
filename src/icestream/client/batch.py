"""A batch of a producer: the messages of one shard that are stored together, and one future for each.

    collecting   `add` puts messages in                          `seal` -> sealed
    sealed       a block (model/block.py), with numbers          `number` gives it others, `split` makes two of it

Nothing is kept for each message but its future, its payload and, where it has them, its key, headers and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from icestream import errors
from icestream.model import envelope
from icestream.model.block import HEAD, Constant, Numbering, Value, Values, encode_block
from icestream.model.envelope import Column
from icestream.rpc.blocks import select_rows

_new_tuple: Final = tuple.__new__  # of a NamedTuple, without its Python-level __new__: this is done for every message


class MessageId(NamedTuple):
    """Where a message is stored. `offset` is -1 when it is stored and the broker no longer knows where."""

    topic: str
    shard: int
    offset: int


MessageId.topic.__doc__ = "The topic that holds the message."
MessageId.shard.__doc__ = "The shard of the topic."
MessageId.offset.__doc__ = "The number of the message in its shard, from 0; -1 when the broker no longer knows it."


class Batch:
    __slots__ = (
        "_headers", "_keys", "_publish_time_us", "_times", "block", "bytes", "deadline_ns", "first_sequence", "futures",
        "is_sent", "payloads", "reopens", "rows", "settled", "shard",
    )  # fmt: skip

    def __init__(self, shard: int, publish_time_us: int, deadline_ns: int) -> None:
        self.shard = shard
        self.deadline_ns = deadline_ns
        self.futures: list[asyncio.Future[MessageId]] = []
        self.payloads: list[bytes] = []  # until it is sealed
        self.rows = 0  # from then on
        self.bytes = 0  # what its messages count
        self.block = b""
        self.first_sequence = -1
        self.is_sent = False  # and not certainly refused: it may be stored
        self.reopens = 0
        self.settled: list[asyncio.Future[None]] = []  # who waits until nothing of it is open
        self._publish_time_us = publish_time_us
        # what only some messages have: shorter than the payloads, until one comes that has it
        self._keys: list[Value] = []
        self._headers: list[Value] = []
        self._times: list[Value] = []

    def add(self, payload: bytes, future: asyncio.Future[MessageId], size: int) -> None:
        """`Producer.send` does the same by itself: it is done for every message."""
        self.payloads.append(payload)
        self.futures.append(future)
        self.bytes += size

    def add_extra(self, key: bytes | None, headers: dict[str, str] | None, publish_time_us: int | None) -> None:
        """Of the message that was added last."""
        row = len(self.payloads) - 1
        if key is not None:
            _fill(self._keys, row, None)
            self._keys.append(key)
        if headers:
            _fill(self._headers, row, None)
            self._headers.append(headers)
        if publish_time_us is not None:
            _fill(self._times, row, self._publish_time_us)
            self._times.append(publish_time_us)

    # --- as a block ---

    @property
    def is_sealed(self) -> bool:
        return bool(self.block)

    def seal(self, constants: Mapping[Column, Constant], numbering: Numbering) -> None:
        """No message comes in any more. Raises InvalidInput for values that no block can hold."""
        self.rows = len(self.payloads)
        columns: dict[Column, Values] = {envelope.PAYLOAD: self.payloads, **constants}
        columns[envelope.PUBLISH_TIME] = Constant(self._publish_time_us)
        some = ((envelope.KEY, self._keys, None), (envelope.HEADERS, self._headers, None))
        for column, values, default in (*some, (envelope.PUBLISH_TIME, self._times, self._publish_time_us)):
            if values:
                _fill(values, self.rows, default)
                columns[column] = values
        self.block = encode_block(self.rows, columns, numbering)
        self.first_sequence = numbering.first_sequence
        self.payloads, self._keys, self._headers, self._times = [], [], [], []

    def number(self, numbering: Numbering) -> None:
        """Another life of the producer, or another place in the order: only the head of the block changes."""
        rows, size, _, _, columns, flags, _ = HEAD.unpack_from(self.block)
        producer_id, epoch, first = numbering.producer_id, numbering.producer_epoch, numbering.first_sequence
        self.block = HEAD.pack(rows, size, producer_id, epoch, columns, flags, first) + self.block[HEAD.size :]
        self.first_sequence = first

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.rows - 1

    def split(self) -> tuple[Batch, Batch]:
        """Two halves, in order: what is wrong with one message must not fail its neighbours."""
        half = self.rows // 2
        first, second = self._part(0, half), self._part(half, self.rows)
        first.bytes = self.bytes // 2
        second.bytes = self.bytes - first.bytes
        second.settled = self.settled
        return first, second

    def _part(self, start: int, end: int) -> Batch:
        part = Batch(self.shard, self._publish_time_us, self.deadline_ns)
        part.block = select_rows(self.block, start, end - start)
        part.first_sequence = self.first_sequence + start
        part.futures = self.futures[start:end]
        part.rows = end - start
        part.reopens = self.reopens
        return part

    # --- what became of it ---

    @property
    def is_abandoned(self) -> bool:
        """Its futures have their answer already."""
        return not self.futures

    def succeed(self, topic: str, base_offset: int) -> None:
        """Stored from `base_offset` on; -1 when that is not known."""
        shard = self.shard
        if base_offset < 0:
            self._all(MessageId(topic, shard, -1))
        else:
            offset = base_offset
            for future in self.futures:
                if not future.done():
                    future.set_result(_new_tuple(MessageId, (topic, shard, offset)))
                offset += 1
        self._settle()

    def _all(self, found: MessageId) -> None:
        for future in self.futures:
            if not future.done():
                future.set_result(found)

    def fail(self, error: errors.IcestreamError) -> None:
        """Its senders hear this now. What the broker says of it later tells only where the numbers stand."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
        self._settle()

    def _settle(self) -> None:
        for waiting in self.settled:
            if not waiting.done():
                waiting.set_result(None)
        self.settled = []
        self.futures = []


def _fill(values: list[Value], count: int, default: Value) -> None:
    values.extend([default] * (count - len(values)))


def headers_of(given: Mapping[Any, Any]) -> dict[str, str]:
    """Headers that a block can hold; the sender's own dictionary may change later. Raises InvalidInput."""
    if not isinstance(given, Mapping):
        raise errors.InvalidInput(f"headers are a dictionary, not {type(given).__name__}", hint='headers={"a": "b"}')
    found: dict[str, str] = {}
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise errors.InvalidInput(
                f"a header is {type(key).__name__}: {type(value).__name__}", hint="headers are text: text"
            )
        try:
            key_bytes = len(key.encode())
            value.encode()
        except UnicodeEncodeError:
            raise errors.InvalidInput("a header is not valid Unicode") from None
        if key_bytes >= 2**16:
            raise errors.InvalidInput(f"a header has a key of {key_bytes} bytes", hint=f"at most {2**16 - 1} fit")
        found[key] = value
    if len(found) >= 2**16:
        raise errors.InvalidInput(f"{len(found)} headers of one message", hint=f"at most {2**16 - 1} fit")
    return found
