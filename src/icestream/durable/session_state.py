"""The state of sessions as a fold of their records (session_records.py). Pure: records in, state out.

    absent --SESSION--> connected --DISCONNECTED--> disconnected --CONNECTED (higher epoch)--> connected
              connected, disconnected --ENDING--> ending --ENDED--> absent

Invariants, for every prefix of a log that `check` accepted:
    epoch          of a session only rises; a record with another epoch than the session's is refused (hazard 59)
    client id      at most one session of it is not ending
    packet ids     an outbound id has one entry; an entry never changes but from SENT to RELEASED (hazards 52, 54)
    inbound ids    are keyed by (session id, packet id): another session of the same client id shares none (hazard 53)
    generations    options never change; a bound's start never moves, its end is set once (hazard 58)
    positions      of a reader and shard never go back
    marks          never go back (hazard 61)
    elapsed time   never goes back (hazard 69)

A session whose SESSION record lies before the readable part of the log has another one behind it (session_log.py), so
records of an unknown session are skipped by a replay, and refused by `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from icestream import errors
from icestream.durable import session_records as rec
from icestream.durable.session_records import NO_OFFSET, AnyRecord, shard_of
from icestream.model.shard import ShardKey

MAIN_READER = 0


@dataclass(slots=True)
class Generation:
    """A subscription generation and its bounds by shard: [start, end), `end` NO_OFFSET while it is open."""

    record: rec.SubscriptionGeneration
    bounds: dict[ShardKey, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """True until it is unsubscribed or replaced. A generation without shards is open."""
        return not self.bounds or any(end == NO_OFFSET for _, end in self.bounds.values())

    def covers(self, key: ShardKey, offset: int) -> bool:
        """True if the subscription was in force when the offset was written."""
        bound = self.bounds.get(key)
        return bound is not None and bound[0] <= offset and (bound[1] == NO_OFFSET or offset < bound[1])


class InFlightMessages(Mapping[int, rec.InFlightEntry]):
    """The outbound messages of a session by packet id, in the order sent. The ids of a run share its record: an entry
    is made when it is asked for."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: dict[int, rec.InFlightEntry | rec.InFlightRun] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __contains__(self, packet_id: object) -> bool:
        return packet_id in self._records

    def __getitem__(self, packet_id: int) -> rec.InFlightEntry:
        record = self._records[packet_id]
        return record.entry(packet_id) if isinstance(record, rec.InFlightRun) else record

    def are_free(self, packet_ids: range) -> bool:
        """True if none of these ids is in flight."""
        return self._records.keys().isdisjoint(packet_ids)

    def add(self, record: rec.InFlightEntry | rec.InFlightRun) -> None:
        """Adds an entry or a run; an entry of an id that is in flight replaces it, in its place."""
        if isinstance(record, rec.InFlightRun):
            self._records.update(dict.fromkeys(record.packet_ids, record))
        else:
            self._records[record.packet_id] = record

    def close(self, packet_ids: Iterable[int]) -> None:
        """Forgets ids; those that are not in flight change nothing."""
        for packet_id in packet_ids:
            self._records.pop(packet_id, None)

    def records(self) -> Iterator[rec.InFlightEntry | rec.InFlightRun]:
        """The records that stand for all messages, in their order."""
        run: rec.InFlightRun | None = None
        start = end = 0  # the packet ids of the run that follow one another
        for packet_id, record in self._records.items():
            if record is run and packet_id == end:
                end += 1
                continue
            if run is not None:
                yield run.part(start, end)
            run = record if isinstance(record, rec.InFlightRun) else None
            start, end = packet_id, packet_id + 1
            if not isinstance(record, rec.InFlightRun):
                yield record
        if run is not None:
            yield run.part(start, end)


@dataclass(slots=True)
class SessionState:
    """One session: everything that a resume needs."""

    id: int
    client_id: str
    epoch: int
    expiry_s: int
    disconnected_ms: int | None = None
    last_packet_id: int = 0
    is_ending: bool = False
    generations: dict[int, Generation] = field(default_factory=dict)
    in_flight: InFlightMessages = field(default_factory=InFlightMessages)  # outbound, QoS 1 and 2
    received: dict[int, ShardKey | None] = field(default_factory=dict)  # inbound QoS 2 ids; None: nothing was stored
    positions: dict[tuple[int, ShardKey], tuple[int, int]] = field(
        default_factory=dict
    )  # reader, shard: position, owed
    will: rec.WillSet | None = None
    owner: rec.SessionOwner | None = None

    @property
    def is_connected(self) -> bool:
        return self.disconnected_ms is None

    def open_generation(self, topic_filter: str) -> Generation | None:
        """The generation that is in force for a filter, not that of a replay; None if it is not subscribed."""
        return next(
            (
                item
                for item in self.generations.values()
                if item.record.filter == topic_filter and item.record.reader == MAIN_READER and item.is_open
            ),
            None,
        )

    def shards(self, reader: int = MAIN_READER) -> set[ShardKey]:
        """The shards that a reader of the session has to read."""
        own = (item for item in self.generations.values() if item.record.reader == reader)
        return {key for generation in own for key in generation.bounds}

    def position(self, key: ShardKey, reader: int = MAIN_READER) -> int:
        """Where the reader goes on in a shard: its stored position, else where its first generation begins."""
        stored = self.positions.get((reader, key))
        if stored is not None:
            return stored[0]
        starts = [
            generation.bounds[key][0]
            for generation in self.generations.values()
            if key in generation.bounds and generation.record.reader == reader
        ]
        return min(starts, default=0)

    def owed(self, key: ShardKey, reader: int = MAIN_READER) -> int:
        """The first offset that is listed as owed; NO_OFFSET if none is."""
        return self.positions.get((reader, key), (0, NO_OFFSET))[1]

    def records(self) -> Iterator[AnyRecord]:
        """The transaction that stands for all records of the session so far. Entries keep the epoch they began with."""
        own = (self.id, self.epoch)
        yield rec.SessionRecord(
            *own, self.client_id, self.expiry_s, self.disconnected_ms, self.last_packet_id, self.is_ending, self.owner
        )
        for number, generation in self.generations.items():
            yield generation.record
            for key, (start, end) in generation.bounds.items():
                yield rec.GenerationBound(*own, number, *key, start, end)
        yield from self.in_flight.records()
        for (reader, key), (position, owed) in self.positions.items():
            yield rec.ReaderPosition(*own, *key, position, owed, reader)
        for packet_id, shard in self.received.items():
            yield rec.ReceivedId(*own, packet_id, *(shard or (0, 0)))
        if self.will is not None:
            yield self.will


class SessionTable:
    """All sessions of a node, their marks and the node's elapsed time."""

    def __init__(self) -> None:
        self.sessions: dict[int, SessionState] = {}
        self.marks: dict[ShardKey, int] = {}
        self.elapsed_ms = 0
        self.wall_us = 0  # when `elapsed_ms` was written
        self._by_client: dict[str, int] = {}

    def of_client(self, client_id: str) -> SessionState | None:
        """The session of a client id that is not ending; None if there is none."""
        session_id = self._by_client.get(client_id)
        return None if session_id is None else self.sessions[session_id]

    def start_of(self, session: SessionState, key: ShardKey, reader: int = MAIN_READER) -> int:
        """Where a start reads on: the owed offset, else the later of the session's position and C (hazard 61)."""
        owed = session.owed(key, reader)
        if owed != NO_OFFSET:
            return owed
        position = session.position(key, reader)
        # C speaks of what was written since the sessions subscribed. A replay reads what is older.
        return position if reader != MAIN_READER else max(position, self.marks.get(key, 0))

    def node_records(self) -> Iterator[AnyRecord]:
        """The transaction that stands for all records of the node itself so far."""
        yield rec.NodeBeat(0, 0, self.elapsed_ms, self.wall_us)
        for key, mark in self.marks.items():
            yield rec.ShardMark(0, 0, *key, mark)

    # --- check ---

    def check(self, records: Sequence[AnyRecord]) -> None:
        """Refuses a transaction that may not be appended now, before any of it is applied.

        Raises SessionFenced for a record of an older epoch or of a session that is gone, Contradiction for one that
        breaks an invariant of the module.
        """
        if any(isinstance(record, rec.NodeBeat) for record in records):
            marked = {shard_of(record) for record in records if isinstance(record, rec.ShardMark)}
            # A block with a BEAT stands for all records of the node before it (session_log.py).
            if not marked >= self.marks.keys():
                raise errors.Contradiction("a beat without all marks of the node")
        epochs: dict[int, int] = {}  # of sessions that this transaction begins or connects
        for record in records:
            if not record.session_id:
                self._check_node(record)
                continue
            session = self.sessions.get(record.session_id)
            epoch = epochs.get(record.session_id, session.epoch if session is not None else None)
            match record:
                case rec.SessionRecord():
                    self._check_begin(record, epoch, records)
                    epochs[record.session_id] = record.epoch
                case rec.SessionConnected() if epoch is not None and record.epoch > epoch:
                    epochs[record.session_id] = record.epoch
                case _ if epoch is None or record.epoch != epoch or isinstance(record, rec.SessionConnected):
                    raise errors.SessionFenced(
                        f"session {record.session_id} has epoch {epoch}, not {record.epoch}",
                        hint="another connection of the client id took the session over, or it ended",
                    )
                case _ if session is not None:
                    _check_entry(session, record)

    def _check_node(self, record: AnyRecord) -> None:
        if isinstance(record, rec.NodeBeat) and record.elapsed_ms < self.elapsed_ms:
            raise errors.Contradiction(f"elapsed time {record.elapsed_ms} ms is below {self.elapsed_ms} ms")
        if isinstance(record, rec.ShardMark) and record.mark < self.marks.get(shard_of(record), 0):
            raise errors.Contradiction(f"mark {record.mark} of {shard_of(record)} would go back")
        if not isinstance(record, rec.NodeBeat | rec.ShardMark):
            raise errors.Contradiction(f"{type(record).__name__} names no session")

    def _check_begin(self, record: rec.SessionRecord, epoch: int | None, records: Sequence[AnyRecord]) -> None:
        if epoch is not None and record.epoch < epoch:
            raise errors.SessionFenced(f"session {record.session_id} has epoch {epoch}, not {record.epoch}")
        current = self.of_client(record.client_id)
        if current is None or current.id == record.session_id or record.is_ending:
            return
        ending = (item for item in records if isinstance(item, rec.SessionEnding))
        if not any(item.session_id == current.id for item in ending):
            raise errors.Contradiction(
                f"session {current.id} of client id {record.client_id[:100]!r} is not ending",
                hint="end it in the transaction that begins the next one",
            )

    # --- apply ---

    def apply(self, records: Iterable[AnyRecord]) -> None:
        """Applies a transaction that was checked, or is read from the log."""
        begun: list[rec.SessionRecord] = []
        for record in records:
            match record:
                case rec.NodeBeat():
                    self.elapsed_ms = max(self.elapsed_ms, record.elapsed_ms)
                    self.wall_us = record.wall_us
                case rec.ShardMark():
                    key = shard_of(record)
                    self.marks[key] = max(self.marks.get(key, 0), record.mark)
                case rec.SessionRecord():
                    self._begin(record)
                    begun.append(record)
                case _ if (session := self.sessions.get(record.session_id)) is not None:
                    self._apply_to(session, record)
        for record in begun:
            # The entries behind a SESSION record are those still open; the last id that was used may be closed.
            if record.last_packet_id and record.session_id in self.sessions:
                self.sessions[record.session_id].last_packet_id = record.last_packet_id

    def _begin(self, record: rec.SessionRecord) -> None:
        session = SessionState(
            record.session_id, record.client_id, record.epoch, record.expiry_s, record.disconnected_ms,
            record.last_packet_id, record.is_ending, owner=record.owner,
        )  # fmt: skip
        self.sessions[session.id] = session
        if not session.is_ending:
            self._by_client[session.client_id] = session.id

    def _apply_to(self, session: SessionState, record: AnyRecord) -> None:
        match record:
            case rec.SessionConnected():
                session.epoch, session.expiry_s, session.disconnected_ms = record.epoch, record.expiry_s, None
                session.owner = record.owner or session.owner
            case rec.SessionDisconnected():
                session.disconnected_ms, session.expiry_s = record.at_ms, record.expiry_s
            case rec.SessionEnding():
                session.is_ending = True
                self._forget_client(session)
            case rec.SessionEnded():
                self._forget_client(session)
                del self.sessions[session.id]
            case _:
                _apply_entry(session, record)

    def _forget_client(self, session: SessionState) -> None:
        if self._by_client.get(session.client_id) == session.id:
            del self._by_client[session.client_id]


def _check_entry(session: SessionState, record: AnyRecord) -> None:
    """Raises Contradiction for a record that breaks an invariant of its session."""
    problem = ""
    match record:
        case rec.InFlightEntry() if record.packet_id in session.in_flight:
            problem = f"packet id {record.packet_id} is in flight"
        case rec.InFlightRun() if not session.in_flight.are_free(record.packet_ids):
            problem = f"one of the packet ids {record.packet_ids} is in flight"
        case rec.InFlightReleased() if record.packet_id not in session.in_flight:
            problem = f"packet id {record.packet_id} is not in flight"
        case rec.ReceivedId() if record.packet_id in session.received:
            problem = f"inbound packet id {record.packet_id} is not released yet"
        case rec.SubscriptionGeneration() if record.number in session.generations:
            problem = f"generation {record.number} exists"
        case rec.GenerationBound() if (generation := session.generations.get(record.number)) is not None:
            start, end = generation.bounds.get(shard_of(record), (record.start, NO_OFFSET))
            if (start, end) != (record.start, record.end) and (start != record.start or end != NO_OFFSET):
                problem = f"generation {record.number} has the bounds [{start}, {end}) in {shard_of(record)}"
        case rec.ReaderPosition():
            position = session.positions.get((record.reader, shard_of(record)), (0, NO_OFFSET))[0]
            if record.position < position or (record.owed != NO_OFFSET and record.owed < record.position):
                problem = f"position {record.position} (owed {record.owed}) does not follow {position}"
    if problem:
        raise errors.Contradiction(f"session {session.id}: {problem}")


def _apply_entry(session: SessionState, record: AnyRecord) -> None:
    match record:
        case rec.SubscriptionGeneration():
            session.generations[record.number] = Generation(record)
        case rec.GenerationBound() if record.number in session.generations:
            session.generations[record.number].bounds[shard_of(record)] = (record.start, record.end)
        case rec.GenerationEnded():
            session.generations.pop(record.number, None)
            for reader, key in [item for item in session.positions if item[0] == record.number]:
                del session.positions[reader, key]
        case rec.InFlightEntry():
            session.in_flight.add(record)
            session.last_packet_id = record.packet_id
        case rec.InFlightRun():
            session.in_flight.add(record)
            session.last_packet_id = record.packet_ids[-1]
        case rec.InFlightReleased() if record.packet_id in session.in_flight:
            entry = session.in_flight[record.packet_id]
            session.in_flight.add(msgspec.structs.replace(entry, state=rec.InFlightState.RELEASED))
        case rec.InFlightClosed():
            session.in_flight.close(record.packet_ids)
        case rec.ReaderPosition():
            session.positions[record.reader, shard_of(record)] = (record.position, record.owed)
        case rec.ReceivedId():
            session.received[record.packet_id] = shard_of(record) if record.topic_id else None
        case rec.ReceivedClosed():
            for packet_id in record.packet_ids:
                session.received.pop(packet_id, None)
        case rec.WillSet():
            session.will = record
        case rec.WillClosed():
            session.will = None
