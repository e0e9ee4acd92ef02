"""The messages of the `raft` crate (eraftpb.proto, proto3) that are stored: Entry, ConfState, Snapshot.

Of a Message, which one node sends to another, only a few fields are read here: 1 msg_type, 9 snapshot, and whether a
leader has sent it, by its first bytes (1 msg_type, 2 to, 3 from, 4 term), because that is checked for every message.

    Entry             1 entry_type (0 normal, 1 conf change, 2 conf change v2)   2 term   3 index   4 data   6 context
    ConfState         1 voters   2 learners   3 voters_outgoing   4 learners_next (all repeated u64)   5 auto_leave
    Snapshot          1 data   2 metadata
    SnapshotMetadata  1 conf_state   2 index   3 term

Written as the crate writes them: fields in the order of their numbers, zeros left out, repeated numbers packed. Read as
protobuf requires: any order, packed or not, unknown fields skipped. Malformed bytes raise DecodeError.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from icestream import errors

# Types of a Message, its first field, which is never zero in one that is sent.
_HEARTBEAT_RESPONSE: Final = 9
_READ_INDEX: Final = 15
_VOTING: Final = frozenset({5, 6, 14, 17, 18})  # vote, its response, timeout-now; 17 and 18: the pre-vote
_SNAPSHOT: Final = 7
_LEADING: Final = (3, _SNAPSHOT, 8)  # entries, a snapshot, a heartbeat: what only a leader sends
_MESSAGE_SNAPSHOT: Final = 9

NORMAL: Final = 0
CONF_CHANGE: Final = 1
CONF_CHANGE_V2: Final = 2

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_NUMBER_MAX = 2**64 - 1


class LogEntry(msgspec.Struct, frozen=True):
    """A decoded Entry."""

    index: int
    term: int
    kind: int
    data: bytes
    context: bytes


class Membership(NamedTuple):
    """ConfState, in the order of ids: the crate does not sort them (trap 5)."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    voters_outgoing: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False

    @property
    def everybody(self) -> frozenset[int]:
        """All voters and learners, of both configurations during a joint change."""
        return frozenset((*self.voters, *self.learners, *self.voters_outgoing))

    @property
    def has_others(self) -> bool:
        """True if there is more than one node, voter or learner."""
        return len(self.voters) + len(self.learners) > 1


class SnapshotParts(msgspec.Struct, frozen=True):
    """A decoded Snapshot with its metadata."""

    index: int
    term: int
    conf: bytes
    data: bytes


def message_kind(data: bytes) -> int:
    """The type of a Message, 0 if the bytes are not a message."""
    return data[1] if len(data) > 1 and data[0] == 0x08 and data[1] < 128 else 0


def depends_on_no_write(message: bytes) -> bool:
    """True for heartbeats and requests: messages that make no statement about stored entries."""
    return message_kind(message) in (_HEARTBEAT_RESPONSE, _READ_INDEX)


def is_of_leader(messages: list[bytes], to: int, leader: int, term: int) -> bool:
    """True if one of the messages was sent by this leader in this term."""
    size, heads = _heads_of_leader(to, leader, term)
    for message in messages:  # noqa: SIM110 - half the time of any()
        if message[:size] in heads:
            return True
    return False


@lru_cache(maxsize=64)  # one for each node of this process, and its last leaders
def _heads_of_leader(to: int, leader: int, term: int) -> tuple[int, frozenset[bytes]]:
    """Length and possible first bytes of messages from this leader.

    There are none if there is no leader, or if this node is the leader.
    """
    if leader in (0, to):
        return 0, frozenset()
    rest = b"\x10" + _varint(to) + b"\x18" + _varint(leader) + b"\x20" + _varint(term)
    return 2 + len(rest), frozenset(bytes((0x08, kind)) + rest for kind in _LEADING)


def ends_of(to: int, sender: int) -> bytes:
    """The fields 2 and 3 of a Message, as the crate writes them."""
    return b"\x10" + _varint(to) + b"\x18" + _varint(sender)


def has_ends(message: bytes, ends: bytes) -> bool:
    """True if a Message is from one node to another (`ends_of`). Its type, before them, takes two bytes."""
    return message.startswith(ends, 2)


def snapshot_in(message: bytes) -> SnapshotParts:
    """The snapshot of a Message (field 9). Raises DecodeError if it has none."""
    for field, value in _fields(message):
        if field == _MESSAGE_SNAPSHOT and isinstance(value, bytes):
            return decode_snapshot(value)
    raise errors.DecodeError("a message without a snapshot")


def rpc_of(message: bytes) -> str:
    """The name of the call that a message belongs to, in metrics, logs and docs (seed 004)."""
    kind = message_kind(message)
    if kind in _VOTING:
        return "Vote"
    return "InstallSnapshot" if kind == _SNAPSHOT else "AppendEntries"


def encode_entry(index: int, term: int, kind: int, data: bytes, context: bytes = b"") -> bytes:
    parts = [b"\x08" + _varint(kind)] if kind else []
    parts.append(b"\x10" + _varint(term) + b"\x18" + _varint(index))
    if data:
        parts += (b"\x22", _varint(len(data)), data)
    if context:
        parts += (b"\x32", _varint(len(context)), context)
    return b"".join(parts)


def decode_entry(data: bytes) -> LogEntry:
    """Decodes an Entry. Raises DecodeError."""
    numbers = {1: 0, 2: 0, 3: 0}
    texts = {4: b"", 6: b""}
    for field, value in _fields(data):
        if field in numbers and isinstance(value, int):
            numbers[field] = value
        elif field in texts and isinstance(value, bytes):
            texts[field] = value
        elif field in numbers or field in texts:
            raise errors.DecodeError(f"field {field} of a log entry has another type")
    if not numbers[2] or not numbers[3]:
        raise errors.DecodeError("a log entry without term or index")
    return LogEntry(numbers[3], numbers[2], numbers[1], texts[4], texts[6])


def encode_conf(conf: Membership) -> bytes:
    parts = []
    for field, ids in enumerate(conf[:4], 1):
        packed = b"".join(_varint(node_id) for node_id in ids)
        if packed:
            parts.append(bytes([field << 3 | _LENGTH]) + _varint(len(packed)) + packed)
    if conf.auto_leave:
        parts.append(b"\x28\x01")
    return b"".join(parts)


def decode_conf(data: bytes) -> Membership:
    """Decodes a ConfState; ids are sorted. Raises DecodeError."""
    ids: dict[int, list[int]] = {1: [], 2: [], 3: [], 4: []}
    auto_leave = False
    for field, value in _fields(data):
        if field in ids:
            ids[field] += _packed(value) if isinstance(value, bytes) else [value]
        elif field == 5:
            auto_leave = bool(value)
    voters, learners, outgoing, coming = (tuple(sorted(node_ids)) for node_ids in ids.values())
    return Membership(voters, learners, outgoing, coming, auto_leave)


def encode_snapshot(parts: SnapshotParts) -> bytes:
    metadata = b"\x0a" + _varint(len(parts.conf)) + parts.conf
    if parts.index:
        metadata += b"\x10" + _varint(parts.index)
    if parts.term:
        metadata += b"\x18" + _varint(parts.term)
    data = b"\x0a" + _varint(len(parts.data)) + parts.data if parts.data else b""
    return data + b"\x12" + _varint(len(metadata)) + metadata


def decode_snapshot(data: bytes) -> SnapshotParts:
    """Decodes a Snapshot. Raises DecodeError."""
    content = metadata = conf = b""
    index = term = 0
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            content = value
        elif field == 2 and isinstance(value, bytes):
            metadata = value
    for field, value in _fields(metadata):
        if field == 1 and isinstance(value, bytes):
            conf = value
        elif field == 2 and isinstance(value, int):
            index = value
        elif field == 3 and isinstance(value, int):
            term = value
    return SnapshotParts(index, term, conf, content)


# --- protobuf ---------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes the varint at `at`; returns the number and the position behind it."""
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            if number > _NUMBER_MAX:
                break
            return number, at
    raise errors.DecodeError("a number of a Raft message is cut off or too large")


def _packed(data: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(data):
        number, at = _read_varint(data, at)
        numbers.append(number)
    return numbers


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields field numbers with their integer or bytes values; skips fields of fixed width."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield field, value
            continue
        if kind == _LENGTH:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise errors.DecodeError(f"wire type {kind} of a Raft message is not known")
        if not field or at + size > len(data):
            raise errors.DecodeError("a field of a Raft message is cut off")
        if kind == _LENGTH:  # no field that is read here has a fixed width: those are skipped
            yield field, data[at : at + size]
        at += size
