"""SharedGroup: one shared subscription, `$share/NAME/FILTER`. Each row goes to one member (hazard 68).

The group reads shards as a session does, by a session of its own in the session log: client id `$share/NAME/FILTER`,
one generation, positions and owed offsets. (Client ids of clients may not begin with `$share/`.) A member has a
generation whose filter is the whole text; it is in no index.

    assign     a row goes to the next member with room. Its entry in the member's session and the position of the group
               are one transaction: it is in flight at one member, or still to be assigned
    return     a member's session ends: its QoS 1 entries go to other members, before new rows; each move closes the
               entry and opens the new one in one transaction, so a crash repeats none and loses none. QoS 2 ends with
               the session (MQTT 5.0, 4.8.2)
    transient  entries of a member without expiry are only in memory, so a durable group holds its stored position below
               them: after a crash they are assigned again

While no member is connected, a durable group is behind as a session is; a group of members without expiry ends with the
last of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from icestream import errors, limits
from icestream.broker.mqtt.message_rows import MqttMessage
from icestream.broker.mqtt.mqtt_session import (
    MqttSession,
    PendingRow,
    PendingRun,
    RowBatch,
    SessionHost,
    SessionReader,
)
from icestream.durable import session_changes as changes
from icestream.durable import session_records as rec
from icestream.durable.session_changes import MatchedRow
from icestream.durable.session_records import NO_OFFSET, AnyRecord, shard_of
from icestream.durable.session_state import MAIN_READER, Generation, SessionState
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger

_log = get_logger("mqtt")
GROUP_PREFIX = "$share/"


class ReturnedEntry(NamedTuple):
    """A message that a member did not finish, and the session that holds its entry."""

    holder: SessionState
    entry: rec.InFlightEntry


class SharedGroup(SessionReader):
    """The members of one group on this node."""

    def __init__(self, state: SessionState, host: SessionHost, text: str) -> None:
        """`text`: `$share/NAME/FILTER`."""
        super().__init__(state, host)
        self.text = text
        self.members: dict[MqttSession, None] = {}
        self._returned: deque[ReturnedEntry] = deque()
        self._next_member = 0

    # --- members ---

    def join(self, member: MqttSession) -> None:
        """Adds a member, which gets rows from now on."""
        self.members[member] = None
        self.pump()

    def leave(self, member: MqttSession) -> None:
        """Removes a member; `return_entries` gives what it had in flight to others."""
        self.members.pop(member, None)

    def generation_of(self, member: MqttSession) -> Generation | None:
        """The subscription by which a session is a member; None if it has ended."""
        return member.state.open_generation(self.text)

    def return_entries(self, holder: SessionState, entries: Sequence[rec.InFlightEntry]) -> None:
        """Assigns the QoS 1 entries of a session that ends to other members."""
        self._returned.extend(ReturnedEntry(holder, entry) for entry in entries if entry.qos == 1)
        self.pump()

    def holds_entries_of(self, holder: SessionState) -> bool:
        """True while entries of an ending session wait for another member."""
        return any(returned.holder is holder for returned in self._returned)

    # --- decisions ---

    @property
    def is_online(self) -> bool:
        return any(member.is_online for member in self.members)

    def has_room(self, qos: int, batch: RowBatch) -> bool:
        ready = [member for member in self.members if member.link is not None and member.link.can_send]
        if not ready or batch.count >= limits.MQTT_BATCH_ROWS:
            return False
        return not qos or sum(max(0, member.room) for member in ready) > batch.numbered

    def has_first(self) -> bool:
        return bool(self._returned)

    # --- assigning ---

    def send_rows(
        self,
        key: ShardKey,
        rows: Sequence[PendingRow | PendingRun],
        position: int,
        indexed_end: int,
        reader: int = MAIN_READER,
    ) -> None:
        assigned = self._assign([row for row in rows if isinstance(row, PendingRow)])  # it takes no runs
        records: list[AnyRecord] = []
        for member, own in assigned.items():
            records += self._entries(member, key, own)
        stored = self._stored_position(key, position, records)
        owed = stored if stored < indexed_end else NO_OFFSET
        if stored > self.state.position(key) or owed != self.state.owed(key):
            records.append(rec.ReaderPosition(self.state.id, self.state.epoch, *key, stored, owed))
        self._send(assigned, records)

    def store_position(self, key: ShardKey, position: int) -> None:
        stored = self._stored_position(key, position, ())
        owed = stored if stored < position else NO_OFFSET
        if self.is_durable and (stored > self.state.position(key) or owed != self.state.owed(key)):
            position_record = rec.ReaderPosition(self.state.id, self.state.epoch, *key, stored, owed)
            self._host.log.stage([position_record], is_lazy=True)

    def store_positions(self) -> None:
        """Records what members without expiry have acked since, in the shards in which the group is not behind."""
        for key, feed in self._host.feeds.items():
            if key not in self.detached and self.state.owed(key) != NO_OFFSET:
                self.store_position(key, feed.position)

    def _assign(self, rows: Sequence[PendingRow]) -> dict[MqttSession, list[PendingRow]]:
        """Deals rows to members in turns, as far as each has room."""
        ready = [member for member in self.members if member.link is not None and member.link.can_send]
        room = {member: member.room for member in ready}
        assigned: dict[MqttSession, list[PendingRow]] = {}
        for row, matched in rows:
            # Round robin; a member without room is passed over, and each is tried once for a row.
            for _ in ready:
                self._next_member += 1
                member = ready[self._next_member % len(ready)]
                generation = self.generation_of(member)
                qos = min(matched.qos, generation.record.qos if generation is not None else 0)
                if qos and room[member] <= 0:
                    continue
                room[member] -= qos > 0
                own = self._options(matched, generation, qos)
                assigned.setdefault(member, []).append(PendingRow(row, own))
                break
        return assigned

    @staticmethod
    def _options(matched: MatchedRow, generation: Generation | None, qos: int) -> MatchedRow:
        if generation is None:
            return matched._replace(qos=qos, identifiers=())
        record = generation.record
        identifiers = (record.identifier,) if record.identifier else ()
        return matched._replace(qos=qos, generation=record.number, identifiers=identifiers)

    @staticmethod
    def _entries(member: MqttSession, key: ShardKey, rows: Sequence[PendingRow]) -> Iterator[AnyRecord]:
        state = member.state
        numbered = [matched for _, matched in rows if matched.qos]
        for packet_id, matched in zip(changes.free_packet_ids(state, len(numbered)), numbered, strict=True):
            yield rec.InFlightEntry(
                state.id, state.epoch, packet_id, *key, matched.offset, matched.qos, matched.generation,
                rec.InFlightState.SENT, matched.is_retained, matched.identifiers,
            )  # fmt: skip

    def _stored_position(self, key: ShardKey, position: int, records: Sequence[AnyRecord]) -> int:
        """`position`, held below what members without expiry have in flight."""
        if not self.is_durable:
            return position
        transient = {member.state.id for member in self.members if not member.is_durable}
        offsets = [record.offset for record in records if isinstance(record, rec.InFlightEntry)
                   and record.session_id in transient]  # fmt: skip
        offsets += [
            entry.offset
            for member in self.members
            if not member.is_durable
            for entry in member.state.in_flight.values()
            if shard_of(entry) == key
        ]
        # What such a member gave back is nowhere else until another member has it.
        offsets += [
            entry.offset
            for holder, entry in self._returned
            if shard_of(entry) == key and not self._host.log.is_stored(holder.id)
        ]
        return max(min([position, *offsets]), self.state.position(key))

    def _send(self, assigned: dict[MqttSession, list[PendingRow]], records: Sequence[AnyRecord]) -> None:
        """Writes entries and position as one transaction, and sends what is assigned when it is synced."""
        log = self._host.log
        stored = {member.state.id for member in assigned if member.is_durable}
        stored |= {record.session_id for record in records if isinstance(record, rec.InFlightClosed)
                   and log.is_stored(record.session_id)}  # fmt: skip
        if self.is_durable:
            stored.add(self.state.id)
        durable = [record for record in records if record.session_id in stored]
        log.table.apply([record for record in records if record.session_id not in stored])
        queued = [
            (member, member.queue_rows(rows, records, waits=bool(durable) and any(matched.qos for _, matched in rows)))
            for member, rows in assigned.items()
        ]

        def on_synced() -> None:
            for member, outgoing in queued:
                member.mark_ready(outgoing)

        if durable:
            log.stage(durable, on_synced)

    async def send_first(self) -> bool:
        """Assigns what members gave back, in the order in which they gave it back."""
        while self._returned:
            holder, entry = self._returned[0]
            key = shard_of(entry)
            feed = self._host.feeds.get(key)
            if entry.packet_id not in holder.in_flight or feed is None:
                self._returned.popleft()
                continue
            if not self.has_room(1, RowBatch()):
                return False
            try:
                row = await read_row(self._host, key, entry.offset)
            except errors.IcestreamError as error:
                _log.warning("a returned message cannot be read now", shard=str(key), error=str(error))
                return False
            # While the row was read, the holder may have come back, or the members have filled up.
            if not self._returned or self._returned[0].entry is not entry or not self.has_room(1, RowBatch()):
                continue
            self._returned.popleft()
            # In one transaction with the entry of the next member: it is in flight at one of them (hazard 68).
            reason = rec.ClosedReason.ACKED if row is not None else rec.ClosedReason.LOST
            records: list[AnyRecord] = [rec.InFlightClosed(holder.id, holder.epoch, (entry.packet_id,), reason)]
            assigned: dict[MqttSession, list[PendingRow]] = {}
            if row is not None:
                matched = MatchedRow(entry.offset, entry.qos, entry.generation, (), entry.is_retained)
                assigned = self._assign([PendingRow(row, matched)])
                for member, own in assigned.items():
                    records += self._entries(member, key, own)
            self._send(assigned, records)
        return True


async def read_row(host: SessionHost, key: ShardKey, offset: int) -> MqttMessage | None:
    """One row by its offset; None if it is gone. Raises LakeAway and the like while its tier cannot be read."""
    feed = host.feeds[key]
    sections = feed.stream.read_hot(offset, 1)
    if not sections:
        try:
            sections = (await feed.stream.read(offset, 1, cache=True)).sections
        except errors.PositionGone:
            return None
    for section in sections:
        for base, messages in host.rows.blocks(key, section, feed.native_topic):
            if base <= offset < base + len(messages.topics):
                return messages.row(offset - base)
    return None
