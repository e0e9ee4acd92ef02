"""Batch: messages of one producer and shard that are stored together, with one future per message.

    collecting   `add` appends messages                                    `seal` -> sealed
    sealed       an encoded block (model/block.py) with sequence numbers   `renumber` replaces them, `split` halves it

Memory per message: its future, its payload and, if it has them, its key, headers and publish time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from icestream import errors
from icestream.model import envelope
from icestream.model.block import HEAD, ConstantColumn, Numbering, Value, Values, encode_block
from icestream.model.envelope import EnvelopeColumn
from icestream.rpc.blocks import select_rows

# Makes a NamedTuple without its Python-level __new__: every stored message gets a MessageId.
_new_tuple: Final = tuple.__new__


class MessageId(NamedTuple):
    """Where a message is stored. `offset` is -1 when it is stored and the broker no longer knows where."""

    topic: str
    shard: int
    offset: int


MessageId.topic.__doc__ = "The topic that holds the message."
MessageId.shard.__doc__ = "The shard of the topic."
MessageId.offset.__doc__ = "The number of the message in its shard, from 0; -1 when the broker no longer knows it."


class Batch:
    """Messages of one shard. `deadline_ns`: when their futures fail unless they are stored."""

    __slots__ = (
        "_headers", "_keys", "_publish_time_us", "_times", "block", "bytes", "deadline_ns", "first_sequence", "futures",
        "is_sent", "payloads", "reopens", "rows", "settled", "shard",
    )  # fmt: skip

    def __init__(self, shard: int, publish_time_us: int, deadline_ns: int) -> None:
        self.shard = shard
        self.deadline_ns = deadline_ns
        self.futures: list[asyncio.Future[MessageId]] = []
        self.payloads: list[bytes] = []  # empty once it is sealed
        self.rows = 0  # set by `seal`
        self.bytes = 0  # the share of its messages in the producer's pending_bytes
        self.block = b""
        self.first_sequence = -1
        self.is_sent = False  # sent and not known to be refused: the broker may have stored it
        self.reopens = 0  # how often the producer registered again because this batch was refused
        self.settled: list[asyncio.Future[None]] = []  # done when all futures are
        self._publish_time_us = publish_time_us
        # Attributes that only some messages have. A list stays shorter than `payloads` until a message has a value.
        self._keys: list[Value] = []
        self._headers: list[Value] = []
        self._times: list[Value] = []

    def add(self, payload: bytes, future: asyncio.Future[MessageId], size: int) -> None:
        """Appends a message. `Producer.send` inlines this for messages without attributes."""
        self.payloads.append(payload)
        self.futures.append(future)
        self.bytes += size

    def add_attributes(self, key: bytes | None, headers: dict[str, str] | None, publish_time_us: int | None) -> None:
        """Sets the attributes of the message that was added last."""
        row = len(self.payloads) - 1
        if key is not None:
            _pad(self._keys, row, None)
            self._keys.append(key)
        if headers:
            _pad(self._headers, row, None)
            self._headers.append(headers)
        if publish_time_us is not None:
            _pad(self._times, row, self._publish_time_us)
            self._times.append(publish_time_us)

    # --- the encoded block ---

    @property
    def is_sealed(self) -> bool:
        return bool(self.block)

    def seal(self, constants: Mapping[EnvelopeColumn, ConstantColumn], numbering: Numbering) -> None:
        """Encodes the messages as a block. Raises InvalidInput for values that no block can hold."""
        self.rows = len(self.payloads)
        columns: dict[EnvelopeColumn, Values] = {envelope.PAYLOAD: self.payloads, **constants}
        columns[envelope.PUBLISH_TIME] = ConstantColumn(self._publish_time_us)
        attributes: tuple[tuple[EnvelopeColumn, list[Value], Value], ...] = (
            (envelope.KEY, self._keys, None),
            (envelope.HEADERS, self._headers, None),
            (envelope.PUBLISH_TIME, self._times, self._publish_time_us),
        )
        for column, values, default in attributes:
            if values:
                _pad(values, self.rows, default)
                columns[column] = values
        self.block = encode_block(self.rows, columns, numbering)
        self.first_sequence = numbering.first_sequence
        # The block has them now: a batch that waits for its answer holds each payload once.
        self.payloads, self._keys, self._headers, self._times = [], [], [], []

    def renumber(self, numbering: Numbering) -> None:
        """Replaces producer, epoch and sequence numbers of a sealed batch: only the head of the block changes."""
        # The sequence of a message may change from one attempt to the next: batches before it were dropped or split.
        rows, size, _, _, columns, flags, _ = HEAD.unpack_from(self.block)
        producer_id, epoch, first = numbering.producer_id, numbering.producer_epoch, numbering.first_sequence
        self.block = HEAD.pack(rows, size, producer_id, epoch, columns, flags, first) + self.block[HEAD.size :]
        self.first_sequence = first

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.rows - 1

    def split(self) -> tuple[Batch, Batch]:
        """Returns two halves, in order: an invalid message must not fail its neighbours."""
        half = self.rows // 2
        first, second = self._part(0, half), self._part(half, self.rows)
        first.bytes = self.bytes // 2
        second.bytes = self.bytes - first.bytes
        second.settled = self.settled  # the second is settled after the first: answers come in order
        return first, second

    def _part(self, start: int, end: int) -> Batch:
        """The rows [start, end) as a sealed batch of their own."""
        part = Batch(self.shard, self._publish_time_us, self.deadline_ns)
        part.block = select_rows(self.block, start, end - start)
        part.first_sequence = self.first_sequence + start
        part.futures = self.futures[start:end]
        part.rows = end - start
        part.reopens = self.reopens
        return part

    # --- the outcome ---

    def succeed(self, topic: str, base_offset: int) -> None:
        """Resolves the futures: stored from `base_offset` on, or -1 if the broker no longer knows the offset."""
        shard = self.shard
        if base_offset < 0:
            message_id = MessageId(topic, shard, -1)
            for future in self.futures:
                if not future.done():
                    future.set_result(message_id)
        else:
            offset = base_offset
            # A future may be done already: the application has cancelled it. Its message is stored nevertheless.
            for future in self.futures:
                if not future.done():
                    future.set_result(_new_tuple(MessageId, (topic, shard, offset)))
                offset += 1
        self._settle()

    def fail(self, error: errors.IcestreamError) -> None:
        """Fails the futures. A later answer of the broker only tells which sequence numbers are stored."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
        self._settle()

    def _settle(self) -> None:
        """Wakes those that wait in `flush`, and lets go of the futures: a batch without futures is abandoned."""
        for future in self.settled:
            if not future.done():
                future.set_result(None)
        self.settled = []
        self.futures = []


def _pad(values: list[Value], count: int, default: Value) -> None:
    """Extends the values to `count` with the default: the messages before had no value."""
    values.extend([default] * (count - len(values)))


def checked_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Returns a copy of the headers: the caller may change its dictionary before the batch is encoded. Raises
    InvalidInput for headers that no block can hold."""
    if not isinstance(headers, Mapping):
        raise errors.InvalidInput(f"headers must be a dict, got {type(headers).__name__}", hint='headers={"a": "b"}')
    texts: dict[str, str] = {}
    for key, value in headers.items():
        if not isinstance(key, str):
            raise errors.InvalidInput(f"header keys must be str, got {type(key).__name__}", hint='headers={"a": "b"}')
        if not isinstance(value, str):
            raise errors.InvalidInput(
                f"header values must be str, got {type(value).__name__} for {key!r:.40}", hint="use str(value)"
            )
        try:
            key_bytes = len(key.encode())
            value.encode()
        except UnicodeEncodeError:
            raise errors.InvalidInput(
                f"header {key!a:.40} is not valid Unicode", hint="it contains a lone surrogate: remove it"
            ) from None
        if key_bytes >= 2**16:
            raise errors.InvalidInput(f"header key too long: {key_bytes:,} bytes, limit {2**16 - 1:,}")
        texts[key] = value
    if len(texts) >= 2**16:
        raise errors.InvalidInput(f"too many headers: {len(texts):,}, limit {2**16 - 1:,}")
    return texts
