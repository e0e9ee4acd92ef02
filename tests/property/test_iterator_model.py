"""R12: a message written to a shard has a larger offset than every iterator that is held or stored for the shard.

The lives of logs of test_log_model.py (random writers, crashes, power losses, failing disks, clocks that go back), with
readers added. Readers hold iterators in clients that survive the broker, or store them as bytes. Checked:
    larger         an append gets offsets at or above every position that existed when it was submitted
    nothing skipped    whatever was acked between the start and the position of an iterator was handed out by it, in
                   order and once, unless the log had freed it before the iterator came there
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from icestream import errors
from icestream.broker.read_ahead import ReadAhead
from icestream.broker.tiered_shard_stream import TieredShardStream
from icestream.durable.iterator import ShardIterator, next_rows
from icestream.model import ShardKey, SyncMode, envelope
from tests.property.test_log_model import KEYS, LogModel, run


@dataclass
class Reader:
    """A reader outside of the broker: its iterator as bytes, and what it was handed."""

    start: int
    stored: bytes
    rows: dict[int, int] = field(default_factory=dict)
    freed: list[tuple[int, int]] = field(default_factory=list)


class IteratorModel(LogModel):
    handed_out = 0

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[Reader] = []
        self.lower_bounds: dict[int, tuple[ShardKey, int]] = {}  # by the number of a message that was submitted

    def positions(self, key: ShardKey) -> list[int]:
        iterators = (ShardIterator.decode(reader.stored) for reader in self.readers)
        return [iterator.position for iterator in iterators if iterator.shard == key]

    @precondition(lambda self: self.log is not None)
    @rule(
        parts=st.lists(
            st.tuples(st.sampled_from(KEYS), st.integers(1, 3), st.integers(0, 7000)), min_size=1, max_size=6
        ),
        steps=st.integers(0, 6),
    )
    def append(self, parts: list[tuple[ShardKey, int, int]], steps: int) -> None:
        first = self.payloads
        bounds = {key: max(self.positions(key), default=0) for key in KEYS}
        numbers = iter(range(first, first + sum(rows for _, rows, _ in parts)))
        for key, rows, _ in parts:
            for _ in range(rows):
                self.lower_bounds[next(numbers)] = (key, bounds[key])
        super().append(parts, steps)

    def note_seen(self, key: ShardKey, offset: int, number: int) -> None:
        super().note_seen(key, offset, number)
        bound_key, bound = self.lower_bounds[number]
        assert bound_key == key
        assert offset >= bound, f"message {number} got offset {offset} of {key}, below an iterator at {bound} (R12)"

    @precondition(lambda self: self.log is not None and not self.log.stopped and len(self.readers) < 8)
    @rule(key=st.sampled_from(KEYS), is_at_end=st.booleans())
    def open_reader(self, key: ShardKey, is_at_end: bool) -> None:
        """At the very end of what is visible, which in some modes is not synced: the hardest place for R12."""
        source = self.source(key)
        position = source.visible if is_at_end else source.log_start()
        self.readers.append(Reader(position, ShardIterator(key, position, "#").encode()))

    def source(self, key: ShardKey) -> TieredShardStream:
        assert self.log is not None
        return TieredShardStream(self.log, self.log.shard(*key), self.clock, ReadAhead(self.loop))

    @precondition(lambda self: self.log is not None and not self.log.stopped and self.readers)
    @rule(data=st.data(), reads=st.integers(1, 4))
    def readers_go_on(self, data: st.DataObject, reads: int) -> None:
        reader = data.draw(st.sampled_from(range(len(self.readers))))
        for _ in range(reads):
            self.read_on(self.readers[reader])

    def read_on(self, reader: Reader) -> bool:
        """Reads once; False at the end."""
        iterator = ShardIterator.decode(reader.stored)
        source = self.source(iterator.shard)
        try:
            batch = self.loop.run_until_complete(next_rows(source, iterator, "native", 4_000))
        except errors.PositionGone:
            reader.freed.append((iterator.position, source.log_start()))
            reader.stored = iterator._replace(position=source.log_start()).encode()
            return True
        for offset, topic, block, row, _ in batch.rows:
            payload = block.values(envelope.PAYLOAD)[row]
            assert isinstance(payload, bytes)
            assert topic == "native"
            assert offset >= iterator.position
            assert offset > max(reader.rows, default=-1), "in order, and once"
            reader.rows[offset] = int(payload.split(b".")[0])
            type(self).handed_out += 1
        reader.stored = batch.iterator.encode()
        assert batch.iterator.position >= iterator.position
        return batch.iterator != iterator

    @precondition(lambda self: self.log is not None and not self.log.stopped and self.readers)
    @rule()
    def nothing_was_skipped(self) -> None:
        self.collect()
        for reader in self.readers:
            while self.read_on(reader):
                pass
            iterator = ShardIterator.decode(reader.stored)
            for offset, number in self.acked[iterator.shard].items():
                is_freed = any(start <= offset < end for start, end in reader.freed)
                if reader.start <= offset < iterator.position and not is_freed:
                    assert reader.rows.get(offset) == number, f"the iterator skipped message {number} at {offset}"


class PeriodicIteratorModel(IteratorModel):
    mode = SyncMode.PERIODIC


class UnsyncedIteratorModel(IteratorModel):
    mode = SyncMode.NONE


@pytest.mark.parametrize(
    "model", [IteratorModel, PeriodicIteratorModel, UnsyncedIteratorModel], ids=["always", "periodic", "none"]
)
def test_r12_no_message_is_written_below_an_iterator(model: type[IteratorModel]) -> None:
    assert run(model, 150) > 40, "a run without restarts proves little"
    assert model.handed_out > 40


def test_r02_r19_iterators_name_their_shard_and_survive_as_bytes() -> None:
    iterator = ShardIterator(ShardKey(2**62, 7), 2**40, "a/+/#")
    encoded = iterator.encode()
    assert ShardIterator.decode(encoded) == iterator
    for size in range(len(encoded)):
        with pytest.raises(errors.DecodeError):
            ShardIterator.decode(encoded[:size])
    with pytest.raises(errors.DecodeError):
        ShardIterator.decode(iterator._replace(filter="a/#/b").encode())
    with pytest.raises(errors.DecodeError):
        ShardIterator.decode(iterator._replace(position=-1).encode())
