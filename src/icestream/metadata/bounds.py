"""Bounds of commands that do not depend on the state. Checked on submission, and again by every state machine.

A command that is refused here is never written to the log: keys that are empty, too long or not valid text, values and
transactions that are too large, times and numbers out of range. What depends on the state (budget, comparisons) is
checked by the state machine.
"""

from __future__ import annotations

from icestream import limits
from icestream.metadata import command as cmd

_NUMBER_MAX = 2**63 - 1
_VALUE_BYTES_MAX = limits.METADATA_VALUE_BYTES_MAX
_SHOWN_CHARACTERS = 60


def refusal(command: cmd.Command) -> cmd.Rejected | None:
    """Returns why the command is invalid, None if it is valid."""
    if (
        isinstance(command, cmd.Put)
        and _is_plain(command.key)
        and len(command.value) <= limits.METADATA_VALUE_BYTES_MAX
    ):
        return None  # the most frequent command costs no match
    match command:
        case cmd.Txn():
            reason = _txn(command)
        case cmd.CompareAndSwap(compare, value, ttl_ms):
            reason = _compare(compare) or _write(cmd.PutWithTtl(compare.key, value, ttl_ms or 1))
        case cmd.AllocateMonotonicId(counter, count):
            reason = _allocate(counter, count)
        case cmd.TakeSnapshot():
            return None
        case cmd.ExpireTtlKeys(keys):
            reason = _expire(keys)
        case _:
            reason = _write(command)
    return cmd.Rejected("invalid", reason) if reason else None


def _is_plain(key: str) -> bool:
    """Whether the key is short ASCII outside of the counters: valid without further checks."""
    return key.isascii() and 0 < len(key) <= limits.METADATA_KEY_BYTES_MAX and not key.startswith(cmd.COUNTERS)


def refused_identity(client: bytes, sequence: int) -> cmd.Rejected | None:
    """Why the client id or sequence number is invalid; None if they are valid."""
    if len(client) > limits.METADATA_CLIENT_BYTES_MAX:
        return cmd.Rejected(
            "invalid", f"client id too long: {len(client)} bytes, limit {limits.METADATA_CLIENT_BYTES_MAX}"
        )
    if not 0 <= sequence <= _NUMBER_MAX:
        return cmd.Rejected("invalid", f"sequence number {sequence} is not between 0 and 2^63 - 1")
    return None


def key_bytes(key: str) -> int:
    """The stored length of a key in bytes, 0 for an invalid key: empty, or not encodable as UTF-8."""
    if key.isascii():
        return len(key)
    try:
        return len(key.encode())
    except UnicodeEncodeError:
        return 0


def shown(key: str) -> str:
    """A key for error messages: shortened and printable."""
    text = key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"
    return text.encode("utf-8", "backslashreplace").decode()


def _key(key: str) -> str:
    """Describes what is wrong with the key; empty if it is valid."""
    if 0 < key_bytes(key) <= limits.METADATA_KEY_BYTES_MAX:
        return ""
    return f"the key {shown(key)!r} is not 1 to {limits.METADATA_KEY_BYTES_MAX} bytes of text"


def _write(command: cmd.Operation) -> str:
    """Describes what is wrong with a put or delete; empty if it is valid."""
    if isinstance(command, cmd.DeletePrefix):
        prefix = command.prefix
        return _key(prefix) or _reserved(prefix, covers=cmd.COUNTERS.startswith(prefix))
    reason = _key(command.key) or _reserved(command.key, covers=False)
    if reason or isinstance(command, cmd.Delete):
        return reason
    if len(command.value) > limits.METADATA_VALUE_BYTES_MAX:
        size, most = len(command.value), limits.METADATA_VALUE_BYTES_MAX
        return f"{shown(command.key)}: value too large: {size} bytes, limit {most}"
    if isinstance(command, cmd.PutWithTtl) and not 0 < command.ttl_ms <= limits.METADATA_TTL_MS_MAX:
        most = limits.METADATA_TTL_MS_MAX
        return f"{shown(command.key)}: time to live of {command.ttl_ms} ms is not between 1 and {most}"
    if isinstance(command, cmd.PutLease) and not 0 < command.ttl_ms <= limits.METADATA_LEASE_MS_MAX:
        return f"{shown(command.key)}: lease of {command.ttl_ms} ms is not between 1 and {limits.METADATA_LEASE_MS_MAX}"
    return ""


def _reserved(key: str, *, covers: bool) -> str:
    """Keys of counters are written by AllocateMonotonicId only, so that no number is given out twice."""
    if covers or key.startswith(cmd.COUNTERS):
        return f"{shown(key)}: only AllocateMonotonicId writes below {cmd.COUNTERS}"
    return ""


def _compare(compare: cmd.Compare) -> str:
    """Describes what is wrong with a comparison; empty if it is valid."""
    if isinstance(compare, cmd.AtRevision) and not 0 <= compare.revision <= _NUMBER_MAX:
        return f"{shown(compare.key)}: revision {compare.revision} is not between 0 and 2^63 - 1"
    if isinstance(compare, cmd.HasValue) and len(compare.value) > limits.METADATA_VALUE_BYTES_MAX:
        return f"{shown(compare.key)}: compared with {len(compare.value)} bytes, more than any value has"
    return _key(compare.key)


def _txn(txn: cmd.Txn) -> str:
    """Describes what is wrong with a transaction; empty if it is valid."""
    count = len(txn.compare) + len(txn.then) + len(txn.otherwise)
    if count > limits.METADATA_TXN_OPERATIONS_MAX:
        return f"transaction too large: {count} operations, limit {limits.METADATA_TXN_OPERATIONS_MAX}"
    size = prefixes = 0
    for compare in txn.compare:
        if type(compare) is cmd.AtRevision and _is_plain(compare.key) and 0 <= compare.revision <= _NUMBER_MAX:
            size += len(compare.key)  # the common case costs no call
            continue
        if reason := _compare(compare):
            return reason
        size += key_bytes(compare.key) + (len(compare.value) if isinstance(compare, cmd.HasValue) else 0)
    for operation in (*txn.then, *txn.otherwise) if txn.otherwise else txn.then:
        if type(operation) is cmd.Put and _is_plain(operation.key) and len(operation.value) <= _VALUE_BYTES_MAX:
            size += len(operation.key) + len(operation.value)
            continue
        if reason := _write(operation):
            return reason
        size += _operation_bytes(operation)
        prefixes += isinstance(operation, cmd.DeletePrefix)
    if prefixes > limits.METADATA_TXN_PREFIXES_MAX:
        return f"transaction deletes {prefixes} prefixes, limit {limits.METADATA_TXN_PREFIXES_MAX}"
    if size > limits.METADATA_TXN_BYTES_MAX:
        return f"transaction too large: {size} bytes, limit {limits.METADATA_TXN_BYTES_MAX}"
    return ""


def _operation_bytes(operation: cmd.Operation) -> int:
    """The bytes of keys and values in an operation."""
    match operation:
        case cmd.DeletePrefix(name) | cmd.Delete(name):
            return key_bytes(name)
        case _:
            return key_bytes(operation.key) + len(operation.value)


def _allocate(counter: str, count: int) -> str:
    """Describes what is wrong with an allocation; empty if it is valid."""
    if not 0 < count <= limits.METADATA_IDS_PER_COMMAND_MAX:
        return f"1 to {limits.METADATA_IDS_PER_COMMAND_MAX} ids can be allocated at once"
    return _key(counter) or _key(cmd.COUNTERS + counter)


def _expire(keys: list[tuple[str, int]]) -> str:
    """Describes what is wrong with an expiry; empty if it is valid."""
    if len(keys) > limits.METADATA_EXPIRE_KEYS_MAX:
        return f"too many keys to expire at once: {len(keys)}, limit {limits.METADATA_EXPIRE_KEYS_MAX}"
    for key, revision in keys:
        if reason := _compare(cmd.AtRevision(key, revision)):
            return reason
    return ""
