"""Everything that writers and readers of one log ever saw, over all its processes, and what must hold of it.

H1  an acked message is there: at its offset, with its bytes, from the floor on, after every start
H2  an offset never has two messages, a message never has two offsets
H3  nothing is there that was never sent
H4  the messages of a writer stand in the order it sent them; those of a numbered producer without a hole
H5  the next offset never goes back, and no offset behind which it stood is given out again
H6  from the floor on, every offset is a message or inside a declared gap, never both
H7  in `always`, and after a stop in order, there is no gap
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.batches import payloads

Key = tuple[int, int]
Name = tuple[str, int]


class HistoryViolation(AssertionError):
    """A promise of the log is broken."""


def check(holds: bool, promise: str, *facts: Any) -> None:
    if not holds:
        raise HistoryViolation(f"{promise}: " + ", ".join(str(fact) for fact in facts))


def is_numbered(writer: str) -> bool:
    return writer.startswith("n")


@dataclass(slots=True)
class ShardHistory:
    at: dict[int, tuple[str, int, int]] = field(default_factory=dict)  # offset: writer, batch, row
    live: set[int] = field(default_factory=set)  # the offsets in `at` that are not below the floor
    gaps: list[tuple[int, int]] = field(default_factory=list)  # rising, as the last start showed them
    floor: int = 0
    next: int = 0  # behind everything that a start or an ack has shown
    started_at: int = 0  # the next offset at the last start
    read: set[int] = field(default_factory=set)  # what the last start showed


class LogHistory:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.shards: dict[Key, ShardHistory] = {}
        self.place: dict[Name, tuple[Key, int]] = {}  # every batch that was acked or read
        self.sent: dict[Name, Key] = {}
        self.acked: dict[str, int] = {}  # of each writer: the batch behind the last one that is acked
        self.refused: Counter[str] = Counter()  # by code
        self.acks = 0
        self._starting: set[Key] = set()

    # --- what a process tells ---

    def hear(self, line: list[Any]) -> None:
        kind, *facts = line
        handler = getattr(self, f"_hear_{kind}", None)
        if handler is not None:
            handler(*facts)

    def _hear_opening(self) -> None:
        self._starting = set()

    def _hear_shard(self, key: list[int], earliest: int, next_offset: int, gaps: list[list[int]]) -> None:
        shard = self._shard(key)
        self._starting.add((key[0], key[1]))
        check(next_offset >= shard.next, "H5 the next offset went back", key, next_offset, "was", shard.next)
        shard.next = shard.started_at = next_offset
        shard.gaps = sorted((start, end) for start, end in gaps)
        shard.read = set()

    def _hear_read(self, key: list[int], base: int, writer: str, number: int) -> None:
        self._note(key, base, writer, number)
        shard = self._shard(key)
        shard.read.update(range(base, base + self._rows(writer, number)))

    def _hear_ready(self) -> None:
        for key in self._starting:
            self._check_start(key)

    def _hear_send(self, writer: str, number: int, key: list[int]) -> None:
        self.sent[writer, number] = (key[0], key[1])

    def _hear_ack(self, writer: str, number: int, key: list[int], base: int | None) -> None:
        name = (writer, number)
        check(name in self.sent, "H3 acked but never sent", writer, number)
        expected = self.acked.get(writer, 0)
        check(number >= expected, "H4 acks out of order", writer, number, expected)
        check(not is_numbered(writer) or number == expected, "H4 a number was skipped", writer, number, expected)
        self.acked[writer] = number + 1
        self.acks += 1
        if base is None:
            check(name in self.place, "H1 'stored, offset not known', but it was never seen", writer, number)
            return
        shard = self._shard(key)
        if name not in self.place:
            check(base >= shard.started_at, "H5 an old offset was given out", key, base, "start at", shard.started_at)
        self._note(key, base, writer, number)
        shard.next = max(shard.next, base + self._rows(writer, number))

    def _hear_refused(self, code: str, text: str, writer: str, number: int) -> None:
        self.refused[code] += 1

    def _hear_known(self, writer: str, number: int) -> None:
        check(
            number >= self.acked.get(writer, 0), "H1 acked, but the producer's window does not know it", writer, number
        )
        missing = [batch for batch in range(number) if (writer, batch) not in self.place]
        check(not missing, "H1 the producer's window knows batches that the log does not hold", writer, missing)
        self.acked[writer] = number

    def _hear_floor(self, key: list[int], offset: int) -> None:
        self._shard(key).floor = offset

    # --- what must hold ---

    def _shard(self, key: list[int] | Key) -> ShardHistory:
        return self.shards.setdefault((key[0], key[1]), ShardHistory())

    def _rows(self, writer: str, number: int) -> int:
        return len(payloads(self.seed, writer, number))

    def _note(self, key: list[int], base: int, writer: str, number: int) -> None:
        """Records that a batch is stored at a place, and checks that it never was, nor will be, at another."""
        name, place = (writer, number), ((key[0], key[1]), base)
        check(name in self.sent, "H3 stored but never sent", writer, number)
        check(self.sent[name] == place[0], "H3 stored in another shard than it was sent to", writer, number, key)
        check(self.place.setdefault(name, place) == place, "H2 a batch with two places", name, place, self.place[name])
        shard = self._shard(key)
        for row in range(self._rows(writer, number)):
            message = (writer, number, row)
            first_message = shard.at.setdefault(base + row, message)
            check(first_message == message, "H2 an offset with two messages", key, base + row, first_message, message)
            if base + row >= shard.floor:
                shard.live.add(base + row)

    def _check_start(self, key: Key) -> None:
        shard = self.shards[key]
        shard.live = {offset for offset in shard.live if offset >= shard.floor}
        lost = sorted(shard.live - shard.read)
        check(not lost, "H1 seen before, gone now", key, [(offset, shard.at[offset]) for offset in lost[:5]])
        check(max(shard.read, default=-1) < shard.next, "H5 a message at or behind the next offset", key, shard.next)
        self._check_dense(key, shard)

    def _check_dense(self, key: Key, shard: ShardHistory) -> None:
        """Steps from the floor to the next offset, over messages and gaps."""
        offset = shard.floor
        for start, end in [*shard.gaps, (shard.next, shard.next)]:
            if end <= shard.floor:
                continue
            missing = [missing_offset for missing_offset in range(offset, start) if missing_offset not in shard.read]
            check(not missing, "H6 missing and not declared", key, missing[:5], "next", shard.next)
            both = sorted(other for other in shard.read if start <= other < end)
            check(not both, "H6 a message inside a declared gap", key, (start, end), both[:5])
            check(end <= shard.next, "H6 a gap reaches beyond the next offset", key, (start, end), shard.next)
            offset = max(offset, end)

    def stored(self, writer: str) -> int:
        """The number of batches of a writer that were read."""
        return sum(name == writer for name, _ in self.place)

    def check_no_gaps(self) -> None:
        for key, shard in self.shards.items():
            check(not shard.gaps, "H7 a gap where there must be none", key, shard.gaps)

    def check_order(self) -> None:
        """Over everything that was ever seen."""
        for key, shard in self.shards.items():
            last: dict[str, tuple[int, int]] = {}
            for offset in sorted(shard.at):
                writer, number, row = shard.at[offset]
                check(last.get(writer, (-1, -1)) < (number, row), "H4 out of order", key, offset, writer, number, row)
                last[writer] = (number, row)

    def check_whole(self, producer: str) -> None:
        """Every batch of a numbered producer, up to the last one that was read, is stored and was acked."""
        numbers = sorted(number for writer, number in self.place if writer == producer)
        check(numbers == list(range(len(numbers))), "H4 a numbered batch is missing", producer, numbers)
        check(len(numbers) == self.acked.get(producer, 0), "H1 not every batch was answered in the end", producer)
