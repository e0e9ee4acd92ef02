"""What happens to a session, as transactions: state and event in, records out. Pure; session_log.py makes them durable.

    event          records                                                          durable before
    CONNECT        SESSION or CONNECTED, WILL; of the session before it ENDING,     CONNACK
                   WILL_CLOSED
    SUBSCRIBE      BOUND (end of the generation before), GENERATION, BOUND          SUBACK
    UNSUBSCRIBE    BOUND                                                            UNSUBACK
    send           IN_FLIGHT for QoS 1 and 2 (IN_FLIGHT_RUN for rows that share     PUBLISH
                   everything else), POSITION
    PUBACK         CLOSED                                                           (the next tick that writes)
    PUBREC         RELEASE; CLOSED if it refuses                                    PUBREL
    PUBCOMP        CLOSED                                                           the reuse of the id
    PUBLISH QoS 2  RECEIVED, in one WAL record with the message                     PUBREC
    PUBREL         RECEIVED_CLOSED                                                  PUBCOMP
    DISCONNECT,    DISCONNECTED, WILL_CLOSED if normal                              (the next tick that writes)
      connection lost
    will due       WILL_CLOSED, in one WAL record with the message
    expiry         ENDING; after the will and the clean-up ENDED

Times are elapsed node time (hazard 69). An id, a shard's end or a new session id is chosen by the caller or by the ring
of packet ids, never by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.durable import session_records as rec
from icestream.durable.session_records import EXPIRY_NEVER, NO_OFFSET, AnyRecord
from icestream.durable.session_state import MAIN_READER, Generation, SessionState, SessionTable
from icestream.model.shard import ShardKey

PACKET_ID_MAX = 65_535


class WillMessage(NamedTuple):
    """The will of a CONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    is_retained: bool = False
    delay_s: int = 0
    properties: bytes = b""


class ConnectPlan(NamedTuple):
    """What a CONNECT does. `fired`: the will of the connection before, to be stored with these records."""

    records: list[AnyRecord]
    session_id: int
    epoch: int
    is_present: bool  # the session-present flag of CONNACK
    fired: rec.WillSet | None


class SubscriptionOptions(NamedTuple):
    """The options of a filter in SUBSCRIBE that a session keeps. `replay_from`: as the client wrote it, or empty."""

    qos: int
    identifier: int = 0
    is_no_local: bool = False
    is_retain_as_published: bool = False
    replay_from: str = ""


class MatchedRow(NamedTuple):
    """A row that a session is to get: by which generation, with which QoS and identifiers."""

    offset: int
    qos: int
    generation: int
    identifiers: tuple[int, ...] = ()
    is_retained: bool = False


class MatchedRun(NamedTuple):
    """Rows of one shard that a session is to get alike, none of them retained."""

    spans: Sequence[rec.Span]
    rows: int
    qos: int
    generation: int
    identifiers: tuple[int, ...] = ()


# --- connections ---


def connect(
    table: SessionTable,
    client_id: str,
    new_session_id: int,
    now_ms: int,
    *,
    is_clean_start: bool,
    expiry_s: int,
    will: WillMessage | None = None,
    owner: rec.SessionOwner | None = None,
) -> ConnectPlan:
    """Begins, resumes or takes over the session of a client id. `owner`: of the new connection; None: without accounts.

    The epoch rises with every connection, so records of the one before are refused from here on (hazard 59). A will
    without delay of a connection that is taken over is published; one with a delay is cancelled by the resume, and
    published at once if the session ends here (hazard 65).
    """
    records: list[AnyRecord] = []
    current = table.of_client(client_id)
    is_resumed = current is not None and not is_clean_start and not _is_expired(current, now_ms)
    fired: rec.WillSet | None = None
    if current is not None and current.will is not None:
        is_fired = not is_resumed or (current.is_connected and not current.will.delay_s)
        fired = current.will if is_fired else None
        end = rec.WillEnd.FIRED if is_fired else rec.WillEnd.CANCELLED
        records.append(rec.WillClosed(current.id, current.epoch, end))
    if current is not None and is_resumed:
        session_id, epoch = current.id, current.epoch + 1
        records.append(rec.SessionConnected(session_id, epoch, expiry_s, owner))
    else:
        if current is not None:
            records.append(rec.SessionEnding(current.id, current.epoch))
        session_id, epoch = new_session_id, 1
        records.append(rec.SessionRecord(session_id, epoch, client_id, expiry_s, owner=owner))
    if will is not None:
        records.append(rec.WillSet(session_id, epoch, *will))
    return ConnectPlan(records, session_id, epoch, is_resumed, fired)


def disconnect(session: SessionState, now_ms: int, *, is_normal: bool, expiry_s: int | None = None) -> list[AnyRecord]:
    """The connection ended; `is_normal`: by DISCONNECT 0x00, which removes the will. `expiry_s`: as it changed it."""
    own = (session.id, session.epoch)
    expiry_s = session.expiry_s if expiry_s is None else expiry_s
    records: list[AnyRecord] = [rec.SessionDisconnected(*own, now_ms, expiry_s)]
    if is_normal and session.will is not None:
        records.append(rec.WillClosed(*own, rec.WillEnd.REMOVED))
    return records


def disconnect_all(table: SessionTable) -> list[AnyRecord]:
    """What a start does first: connections that were open when the node stopped are lost now (hazard 65)."""
    return [
        record
        for session in table.sessions.values()
        if session.is_connected and not session.is_ending
        for record in disconnect(session, table.elapsed_ms, is_normal=False)
    ]


def expiry_ms(session: SessionState) -> int | None:
    """The elapsed time at which the session ends; None while it is connected, or for ever."""
    if session.disconnected_ms is None or session.expiry_s == EXPIRY_NEVER:
        return None
    return session.disconnected_ms + 1000 * session.expiry_s


def will_ms(session: SessionState) -> int | None:
    """The elapsed time at which the will is published: after its delay, or when the session ends if that is earlier."""
    if session.will is None or (session.disconnected_ms is None and not session.is_ending):
        return None
    if session.is_ending:
        return 0
    assert session.disconnected_ms is not None
    after_delay = session.disconnected_ms + 1000 * session.will.delay_s
    end = expiry_ms(session)
    return after_delay if end is None else min(after_delay, end)


def _is_expired(session: SessionState, now_ms: int) -> bool:
    end = expiry_ms(session)
    return end is not None and end <= now_ms


def fire_will(session: SessionState) -> list[AnyRecord]:
    """Closes the will; stored in one WAL record with its message, so that it is published once (hazard 65)."""
    return [rec.WillClosed(session.id, session.epoch, rec.WillEnd.FIRED)]


def end_session(session: SessionState) -> list[AnyRecord]:
    """Begins the end of a session; from here on its client id may have another one (hazard 69)."""
    return [rec.SessionEnding(session.id, session.epoch)]


def forget_session(session: SessionState) -> list[AnyRecord]:
    """Ends a session whose will and filters are cleaned up. Raises Contradiction before that."""
    if not session.is_ending or session.will is not None:
        raise errors.Contradiction(f"session {session.id} cannot be forgotten: its end or its will is still due")
    return [rec.SessionEnded(session.id, session.epoch)]


def beat(table: SessionTable, elapsed_ms: int, wall_us: int, marks: Mapping[ShardKey, int]) -> list[AnyRecord]:
    """The elapsed time of the node, and all its marks: those of `marks` moved (hazards 61, 69)."""
    moved = {**table.marks, **marks}
    return [
        rec.NodeBeat(0, 0, max(elapsed_ms, table.elapsed_ms), wall_us),
        *(rec.ShardMark(0, 0, *key, mark) for key, mark in moved.items()),
    ]


# --- subscriptions ---


def subscribe(
    session: SessionState,
    topic_filter: str,
    options: SubscriptionOptions,
    ends: Mapping[ShardKey, int],
    replay_starts: Mapping[ShardKey, int] | None = None,
) -> list[AnyRecord]:
    """Subscribes from `ends` on: the end of what the node's match index has seen of each shard (hazard 56). Nothing, if
    it is subscribed in this way.

    Other options are the next generation at the same offsets: what was written before is sent with the old ones.

    `replay_starts`: history from these offsets on is sent first, by a generation with positions of its own. The
    subscription gets its bound in a shard when the replay has reached the index there (`join_replay`, hazard 71).
    """
    current = session.open_generation(topic_filter)
    records: list[AnyRecord] = []
    if current is not None:
        # Clients subscribe again at every connect: without this each of them would add a generation and its bounds.
        if _options_of(current) == options and (options.replay_from or current.bounds.keys() >= ends.keys()):
            return []
        records += _close_bounds(session, current, ends)
        records += [
            rec.GenerationEnded(session.id, session.epoch, replay.record.number)
            for replay in session.generations.values()
            if replay.record.reader and replay.record.filter == topic_filter
        ]
    filter_bytes = sum(len(item.record.filter.encode()) for item in session.generations.values())
    if filter_bytes + len(topic_filter.encode()) > limits.SESSION_FILTER_BYTES_MAX:
        raise errors.PolicyReached(
            f"the filters of session {session.id} have {filter_bytes} bytes, the most that a session may have",
            hint="subscribe to fewer filters, or use wildcards",
        )
    # Above all that the session has, ended ones too: entries in flight name the generation that they were sent by.
    number = max(session.generations, default=0) + 1
    records.append(_generation(session, number, topic_filter, options))
    if replay_starts is None:
        records += [rec.GenerationBound(session.id, session.epoch, number, *key, end) for key, end in ends.items()]
        return records
    replay = number + 1
    records.append(_generation(session, replay, topic_filter, options, reader=replay))
    records += [
        rec.GenerationBound(session.id, session.epoch, replay, *key, start) for key, start in replay_starts.items()
    ]
    return records


def _generation(
    session: SessionState, number: int, topic_filter: str, options: SubscriptionOptions, reader: int = MAIN_READER
) -> rec.SubscriptionGeneration:
    return rec.SubscriptionGeneration(
        session.id,
        session.epoch,
        number,
        topic_filter,
        options.qos,
        options.identifier,
        options.is_no_local,
        options.is_retain_as_published,
        reader,
        options.replay_from,
    )


def join_replay(session: SessionState, replay: Generation, key: ShardKey, offset: int) -> list[AnyRecord]:
    """The replay has reached what the index has seen of the shard: the subscription takes over at this offset."""
    own = (session.id, session.epoch)
    start, _ = replay.bounds[key]
    number = replay.record.number
    records: list[AnyRecord] = [rec.GenerationBound(*own, number, *key, start, max(start, offset))]
    subscription = session.open_generation(replay.record.filter)
    if subscription is not None and key not in subscription.bounds:
        records.append(rec.GenerationBound(*own, subscription.record.number, *key, offset))
    others = [end for shard, (_, end) in replay.bounds.items() if shard != key]
    if NO_OFFSET not in others:
        records.append(rec.GenerationEnded(*own, number))
    return records


def extend(session: SessionState, ends: Mapping[ShardKey, int]) -> list[AnyRecord]:
    """Subscriptions reach shards that a route has since the last start, from `ends` on: what is published there was
    stored elsewhere before (hazard 64). The bound of a replay that has not come to its end is set by `join_replay`."""
    records: list[AnyRecord] = []
    for number, generation in session.generations.items():
        # A member of a shared group has no bounds of its own: the group has them.
        is_member = generation.record.filter.startswith("$share/")
        if generation.record.reader != MAIN_READER or not generation.is_open or is_member:
            continue
        pending = {
            key
            for other in session.generations.values()
            if other.record.reader != MAIN_READER and other.record.filter == generation.record.filter
            for key in other.bounds
        }
        new = (key for key in ends if key not in generation.bounds and key not in pending)
        records += [rec.GenerationBound(session.id, session.epoch, number, *key, ends[key]) for key in new]
    return records


def unsubscribe(session: SessionState, topic_filter: str, ends: Mapping[ShardKey, int]) -> list[AnyRecord]:
    """Ends the subscription at `ends`; nothing if there is none. A shard that `ends` does not have is gone.

    What was written before is still sent.
    """
    current = session.open_generation(topic_filter)
    if current is None:
        return []
    replays = [
        rec.GenerationEnded(session.id, session.epoch, generation.record.number)
        for generation in session.generations.values()
        if generation.record.reader and generation.record.filter == topic_filter
    ]
    return [*_close_bounds(session, current, ends), *replays]


def revoke(session: SessionState, topic_filter: str) -> list[AnyRecord]:
    """Ends the subscription, its replays, and what was still to be sent of them: the right to the filter has ended."""
    return [
        rec.GenerationEnded(session.id, session.epoch, number)
        for number, generation in session.generations.items()
        if generation.record.filter == topic_filter
    ]


def _close_bounds(session: SessionState, generation: Generation, ends: Mapping[ShardKey, int]) -> list[AnyRecord]:
    own, number = (session.id, session.epoch), generation.record.number
    if not generation.bounds:
        return [rec.GenerationEnded(*own, number)]
    # Closed, not ended: rows below the bound are still to be sent. `send_rows` ends it when all positions have passed.
    return [
        rec.GenerationBound(*own, number, *key, start, max(start, ends.get(key, start)))
        for key, (start, end) in generation.bounds.items()
        if end == NO_OFFSET
    ]


def _options_of(generation: Generation) -> SubscriptionOptions:
    record = generation.record
    return SubscriptionOptions(
        record.qos, record.identifier, record.is_no_local, record.is_retain_as_published, record.replay_from
    )


def match_row(
    session: SessionState,
    key: ShardKey,
    offset: int,
    message_qos: int,
    is_match: Callable[[str], bool],
    *,
    is_own: bool = False,
    is_retained: bool = False,
    reader: int = MAIN_READER,
) -> MatchedRow | None:
    """One delivery for all subscriptions that were in force at the offset and match; None if there is none.

    `is_match`: whether a filter matches the topic of the row.
    """
    generations = [
        generation
        for generation in session.generations.values()
        if generation.record.reader == reader and is_match(generation.record.filter)
    ]
    return merge_generations(generations, key, offset, message_qos, is_own=is_own, is_retained=is_retained)


def merge_generations(
    generations: Iterable[Generation],
    key: ShardKey,
    offset: int,
    message_qos: int,
    *,
    is_own: bool = False,
    is_retained: bool = False,
) -> MatchedRow | None:
    """One delivery for those of these generations, whose filters match, that were in force at the offset.

    `is_own`: the session's client published it (no-local). Overlapping subscriptions merge: the highest QoS, all
    identifiers (hazards 57, 58).
    """
    in_force = [
        generation.record
        for generation in generations
        if generation.covers(key, offset) and not (is_own and generation.record.is_no_local)
    ]
    if not in_force:
        return None
    # One delivery with the highest QoS, not one for each subscription: MQTT allows both, clients expect this.
    decisive = max(in_force, key=lambda generation: generation.qos)
    identifiers = sorted({generation.identifier for generation in in_force if generation.identifier})
    keeps_retain = is_retained and any(generation.is_retain_as_published for generation in in_force)
    return MatchedRow(
        offset, min(decisive.qos, message_qos), decisive.number,
        tuple(identifiers[: limits.MQTT_IDENTIFIERS_MAX]), keeps_retain,
    )  # fmt: skip


# --- outbound ---


def free_packet_ids(session: SessionState, count: int) -> Sequence[int]:
    """The next free ids of the ring, behind the last one that was used; fewer if it is nearly full (hazard 54)."""
    start = session.last_packet_id % PACKET_ID_MAX + 1
    following = range(start, start + count)
    if following.stop <= PACKET_ID_MAX + 1 and session.in_flight.are_free(following):
        return following
    packet_ids: list[int] = []
    packet_id = session.last_packet_id
    for _ in range(min(PACKET_ID_MAX, count + len(session.in_flight))):
        packet_id = packet_id % PACKET_ID_MAX + 1
        if packet_id not in session.in_flight:
            packet_ids.append(packet_id)
            if len(packet_ids) == count:
                break
    return packet_ids


def send_rows(
    session: SessionState,
    key: ShardKey,
    rows: Sequence[MatchedRow | MatchedRun],
    position: int,
    indexed_end: int,
    reader: int = MAIN_READER,
) -> list[AnyRecord]:
    """Entries for the rows and runs of QoS 1 and 2, in their order, and the position behind all that was looked at.
    Generations that every position has passed end here.

    `indexed_end`: up to where the node's match index has looked at the shard; C never passes it. Below it the session
    stays listed as owed: it has not seen what the index has, so C must not speak for it (hazard 61).

    Raises PolicyReached if the ring has not so many ids: the caller sends at most the client's Receive Maximum.
    """
    own = (session.id, session.epoch)
    count = sum(row.rows if isinstance(row, MatchedRun) else 1 for row in rows if row.qos)
    packet_ids = free_packet_ids(session, count) if count else ()
    if len(packet_ids) < count:
        raise errors.PolicyReached(
            f"session {session.id} has {len(session.in_flight)} messages in flight", hint="wait for acks of the client"
        )
    records: list[AnyRecord] = []
    used = 0
    for row in rows:
        if not row.qos:
            continue
        if isinstance(row, MatchedRun):
            records += _run_records(session, key, row, packet_ids[used : used + row.rows])
            used += row.rows
        else:
            records.append(
                rec.InFlightEntry(
                    *own, packet_ids[used], *key, row.offset, row.qos, row.generation, rec.InFlightState.SENT,
                    row.is_retained, row.identifiers,
                )
            )  # fmt: skip
            used += 1
    owed = position if position < indexed_end else NO_OFFSET
    records.append(rec.ReaderPosition(*own, *key, position, owed, reader))
    records += [
        rec.GenerationEnded(*own, number)
        for number, generation in session.generations.items()
        if _is_passed(session, generation, key, position, reader)
    ]
    return records


def _run_records(
    session: SessionState, key: ShardKey, run: MatchedRun, packet_ids: Sequence[int]
) -> Iterator[rec.InFlightRun]:
    """A record for each range of consecutive packet ids: at the end of the ring, and at an id that is still in flight,
    a run is divided."""
    start = 0
    while start < run.rows:
        if isinstance(packet_ids, range):
            end = run.rows
        else:
            end = start + 1
            while end < run.rows and packet_ids[end] == packet_ids[end - 1] + 1:
                end += 1
        spans = tuple(rec.cut_spans(run.spans, start, end))
        yield rec.InFlightRun(
            session.id, session.epoch, packet_ids[start], *key, spans, run.qos, run.generation, run.identifiers
        )
        start = end


def _is_passed(session: SessionState, generation: Generation, key: ShardKey, position: int, reader: int) -> bool:
    """True if the reader of a closed generation has passed all its bounds, with `position` in the shard `key`."""
    if generation.is_open or generation.record.reader != reader:
        return False
    return all(
        end <= (position if shard == key else session.position(shard, reader))
        for shard, (_, end) in generation.bounds.items()
    )


def list_owed(session: SessionState, key: ShardKey, offset: int) -> list[AnyRecord]:
    """Lists the first match that is not sent; durable before C passes it (hazard 61). Nothing if one is listed."""
    if session.owed(key) != NO_OFFSET:
        return []
    position = min(session.position(key), offset)
    return [rec.ReaderPosition(session.id, session.epoch, *key, position, offset)]


def resends(session: SessionState) -> Iterable[rec.InFlightEntry]:
    """What a resume sends first, in the order of the first sending: PUBLISH with DUP, or PUBREL if RELEASED."""
    return session.in_flight.values()


def pubacks(session: SessionState, packet_ids: Sequence[int]) -> list[AnyRecord]:
    """Ends the QoS 1 messages of these ids; ids that are not in flight change nothing. The connection has checked that
    each is of QoS 1."""
    in_flight = session.in_flight
    closed = tuple(packet_id for packet_id in packet_ids if packet_id in in_flight)
    return [rec.InFlightClosed(session.id, session.epoch, closed)] if closed else []


def puback(session: SessionState, packet_id: int) -> list[AnyRecord]:
    """Ends a QoS 1 message; nothing for an id that is not one (a late or wrong ack changes nothing)."""
    entry = session.in_flight.get(packet_id)
    if entry is None or entry.qos != 1:
        return []
    return [rec.InFlightClosed(session.id, session.epoch, (packet_id,))]


def pubrec(session: SessionState, packet_id: int, *, is_refused: bool = False) -> list[AnyRecord]:
    """The client has a QoS 2 message, or refuses it; nothing for an id that is not one, or has its PUBREC."""
    entry = session.in_flight.get(packet_id)
    if entry is None or entry.qos != 2 or entry.state is not rec.InFlightState.SENT:
        return []
    if is_refused:
        return [rec.InFlightClosed(session.id, session.epoch, (packet_id,), rec.ClosedReason.REFUSED)]
    return [rec.InFlightReleased(session.id, session.epoch, packet_id)]


def pubcomp(session: SessionState, packet_id: int) -> list[AnyRecord]:
    """Ends a QoS 2 message; nothing for an id whose PUBREL was not sent."""
    entry = session.in_flight.get(packet_id)
    if entry is None or entry.state is not rec.InFlightState.RELEASED:
        return []
    return [rec.InFlightClosed(session.id, session.epoch, (packet_id,))]


def lose(session: SessionState, packet_ids: Sequence[int]) -> list[AnyRecord]:
    """Ends messages whose row is gone (hazard 52); nothing for ids that are not in flight."""
    lost = tuple(packet_id for packet_id in packet_ids if packet_id in session.in_flight)
    return [rec.InFlightClosed(session.id, session.epoch, lost, rec.ClosedReason.LOST)] if lost else []


# --- inbound QoS 2 ---


def receive(session: SessionState, packet_id: int, shard: ShardKey | None) -> list[AnyRecord]:
    """Notes an inbound QoS 2 id; nothing if it is noted: then the message is a resend and is not stored again.

    `shard`: where the message is stored; None if it matches nothing and only the id is noted (hazard 53). The DUP flag
    says nothing (R34).
    """
    if packet_id in session.received:
        return []
    return [rec.ReceivedId(session.id, session.epoch, packet_id, *(shard or (0, 0)))]


def pubrel(session: SessionState, packet_id: int) -> list[AnyRecord]:
    """Releases an inbound QoS 2 id; nothing if it is not noted."""
    if packet_id not in session.received:
        return []
    return [rec.ReceivedClosed(session.id, session.epoch, (packet_id,))]
