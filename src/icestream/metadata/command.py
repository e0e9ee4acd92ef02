"""The commands of the metadata store: what is written to its log and applied by every node alike.

An envelope is one msgpack array: version, client, sequence, time_ms, command. `time_ms` is stamped by the leader when
the command is proposed; `client` and `sequence` make a repeat harmless, for a client that has one command in flight at
a time. A command of an unknown version is never skipped: the node stops, because others may understand it.

The commands of seed 004 are Put, PutWithTTL, Delete, DeletePrefix, CompareAndSwap, AllocateMonotonicId and
ExpireTTLKeys. Txn (hazard 10), PutLease (46) and TakeSnapshot are additions. A Txn applies all of `then` if every
comparison holds, else all of `otherwise`; one revision, one batch of events. Its operations see those before them.
bounds.py defines which commands are valid.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors

VERSION: Final = 1


class Put(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="put"):
    """Puts a key without a deadline."""

    key: str
    value: bytes


class PutWithTtl(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="put_ttl"):
    """The key expires `ttl_ms` after the time of the command, unless it is put again before."""

    key: str
    value: bytes
    ttl_ms: int


class PutLease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="lease"):
    """The key expires when it was not renewed for `ttl_ms`. A renewal is not a command: see leases.py."""

    key: str
    value: bytes
    ttl_ms: int


class Delete(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="delete"):
    """Deletes a key."""

    key: str


class DeletePrefix(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="delete_prefix"):
    """Every key that begins with `prefix`: the first METADATA_DELETE_KEYS_MAX of them, `Done.more` when some are left.

    In a Txn all of them, or the Txn is rejected.
    """

    prefix: str


class Absent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="absent"):
    """The key does not exist."""

    key: str


class AtRevision(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="revision"):
    """The key was last changed at this revision: the recommended comparison."""

    key: str
    revision: int


class HasValue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="value"):
    """The key has this value."""

    key: str
    value: bytes


Compare = Absent | AtRevision | HasValue


class CompareAndSwap(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="cas"):
    """Puts the compared key if the comparison holds."""

    compare: Compare
    value: bytes
    ttl_ms: int = 0  # 0: for ever


class AllocateMonotonicId(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="allocate"):
    """Allocates the next `count` numbers of a counter, from 1.

    A counter is the key COUNTERS + its name; no other command may write there, so that no number is given out twice.
    """

    counter: str
    count: int = 1


class ExpireTtlKeys(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="expire"):
    """Deletes those of the keys that are past their deadline and unchanged since the given revision.

    A key that was renewed has another revision, and stays.
    """

    keys: list[tuple[str, int]]


class TakeSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="snapshot"):
    """Changes nothing. Every node takes a snapshot of the state at this entry, so that their SHA-256 are comparable."""


Operation = Put | PutWithTtl | PutLease | Delete | DeletePrefix


class Txn(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="txn"):
    """Applies `then` if every comparison holds, else `otherwise`."""

    compare: list[Compare]
    then: list[Operation]
    otherwise: list[Operation] = []


Command = Operation | CompareAndSwap | AllocateMonotonicId | ExpireTtlKeys | Txn | TakeSnapshot

COUNTERS: Final = "/counters/"


class Envelope(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A command as it is stored in the log."""

    version: int
    client: bytes  # empty: repeats are not recognised
    sequence: int
    time_ms: int
    command: Command


# --- answers ----------------------------------------------------------------------------------------------------------


class Done(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="done"):
    """The command was applied (`held`: its comparisons held) at this revision."""

    revision: int
    held: bool = True
    more: bool = False  # DeletePrefix: keys are left
    first_id: int = 0  # AllocateMonotonicId


class Rejected(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="rejected"):
    """The command violates a bound or is invalid. Nothing changed. `code` as in errors.py."""

    code: str
    message: str


Answer = Done | Rejected

# The exceptions of msgspec for malformed bytes; text that is not UTF-8 is a ValueError.
NOT_MSGPACK: Final = (msgspec.MsgspecError, ValueError, RecursionError)

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_answers: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)


def decode_answer(data: object) -> Answer:
    """Decodes an answer. Raises OutcomeUnknown for an undecodable one: the command may have been applied."""
    try:
        return _answers.decode(data)  # type: ignore[arg-type]  # whatever it is
    except (*NOT_MSGPACK, TypeError) as error:
        raise errors.OutcomeUnknown(f"malformed answer: {error}", hint="read the keys it would have changed") from None


def encode_envelope(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """Decodes an envelope. Raises FormatUnknown for another version, DecodeError for anything else."""
    try:
        envelope = _envelopes.decode(data)
    except NOT_MSGPACK as error:
        version = _version_of(data)
        if version is not None and version > VERSION:
            raise _unknown(version) from None
        raise errors.DecodeError(f"not a command of the metadata store: {error}") from None
    if envelope.version != VERSION:
        raise _unknown(envelope.version)
    return envelope


def _version_of(data: bytes) -> int | None:
    try:
        array = msgspec.msgpack.decode(data)
    except NOT_MSGPACK:
        return None
    return array[0] if isinstance(array, list) and array and isinstance(array[0], int) else None


def _unknown(version: int) -> errors.FormatUnknown:
    """The error of a command of a newer version."""
    return errors.FormatUnknown(
        f"a command of version {version} is in the log of the metadata store",
        hint="use the version of Icestream that wrote it",
    )
