"""The whole state as bytes: the same commands give the same bytes, and so the same SHA-256, on every node.

A SNAPSHOT
    0   8 bytes  magic "ICESMETA"
    8   u32      version, 1
    12  chunks, one after the other, up to and including END:
            u32  size of the body
            u32  kind
            body: one msgpack value
        1 HEAD     array: revision, time_ms, number of entries, number of clients
        2 ENTRIES  array of arrays: key (str), array: value (bin), create_revision, mod_revision, version, deadline_ms,
                   lease_ms (entry.py); keys rise over all chunks. A chunk ends at 512 entries, or behind the entry that
                   brings its keys and values to 1 MiB: where it ends follows from the entries alone
        3 CLIENTS  array of arrays: client (bin), sequence, time_ms, answer (command.py), at most 512;
                   least recently used first
        4 END      nil

`Frozen` encodes it in slices while commands are being applied. It visits the keys in order and remembers the last one;
when a key behind that changes meanwhile, its old entry (the preimage) is kept. Keys up to the last one need nothing.
A slice visits at most 512 keys or 1 MiB of values, whatever is applied meanwhile (hazard 28).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from heapq import merge
from typing import Any, Final

import msgspec

from icestream import errors, limits
from icestream.metadata import command as cmd
from icestream.metadata.entry import Entry
from icestream.metadata.ordered_map import OrderedMap, ordered_map
from icestream.metadata.state_machine import Budget, Remembered, StateMachine

MAGIC: Final = b"ICESMETA"
VERSION: Final = 1
_FRONT = struct.Struct("<8sI")
_CHUNK = struct.Struct("<II")
_HEAD, _ENTRIES, _CLIENTS, _END = 1, 2, 3, 4
_NIL: Final = b"\xc0"

_SLICE_ENTRIES: Final = limits.METADATA_SNAPSHOT_SLICE_ENTRIES
_SLICE_BYTES: Final = limits.METADATA_SNAPSHOT_SLICE_BYTES
# A full chunk, and what msgpack puts around each of its values.
_CHUNK_BYTES_MAX: Final = (
    _SLICE_BYTES + limits.METADATA_VALUE_BYTES_MAX + limits.METADATA_KEY_BYTES_MAX + 1024 * _SLICE_ENTRIES
)

_encoder = msgspec.msgpack.Encoder()
_entries_decoder = msgspec.msgpack.Decoder(list[tuple[str, Entry]])
_clients_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, int, int, cmd.Answer]])
_head_decoder = msgspec.msgpack.Decoder(tuple[int, int, int, int])


class Frozen:
    """The state as it is at this moment; one at a time.

    `end` must be called when it is no longer needed, and may be called again later, when the next one has begun.
    """

    def __init__(self, machine: StateMachine) -> None:
        assert machine.keep_preimage is None
        self._machine = machine
        self._entries = machine.entries
        self._clients = list(machine.clients.items())
        self._head = (machine.revision, machine.time_ms, len(machine.entries), len(self._clients))
        self._preimages: OrderedMap[str, Entry | None] = ordered_map()
        self._passed = ""  # no key is empty: everything is behind it
        self.visited_most = 0  # keys visited by the largest slice
        machine.keep_preimage = self._keep

    def end(self) -> None:
        """Stops keeping preimages."""
        if self._machine.keep_preimage == self._keep:
            self._machine.keep_preimage = None

    def _keep(self, key: str, old: Entry | None) -> None:
        """Called by the state machine before a key changes."""
        # Only the first change of a key that is still to be encoded: the entry before it is that of the snapshot's
        # moment.
        if key > self._passed and key not in self._preimages:
            self._preimages[key] = old

    def slices(self) -> Iterator[bytes]:
        """Yields the encoded snapshot, one slice of work for each step. Some steps yield no bytes."""
        yield _FRONT.pack(MAGIC, VERSION) + _chunk(_HEAD, self._head)
        yield from self._entry_slices()
        for start in range(0, len(self._clients), _SLICE_ENTRIES):
            rows = [
                (client, last.sequence, last.time_ms, last.answer)
                for client, last in self._clients[start : start + _SLICE_ENTRIES]
            ]
            yield _chunk(_CLIENTS, rows)
        yield _chunk(_END, None)

    def _entry_slices(self) -> Iterator[bytes]:
        """Encodes the entries; a chunk may span several slices, so that its bounds depend on the entries alone."""
        rows: list[tuple[str, Entry]] = []
        size = 0
        is_last = False
        while not is_last:
            encoded: list[bytes] = []
            visited = 0
            is_last = True
            for key in self._coming():
                visited += 1
                self._passed = key
                entry = self._preimages[key] if key in self._preimages else self._entries[key]
                if entry is not None:
                    rows.append((key, entry))
                    size += len(key) + len(entry.value)
                    if len(rows) == _SLICE_ENTRIES or size >= _SLICE_BYTES:
                        encoded.append(_chunk(_ENTRIES, rows))
                        rows, size = [], 0
                # Counted by visited keys, not by encoded ones: a run of keys that were created since the beginning is
                # work too.
                if encoded or visited == _SLICE_ENTRIES:
                    is_last = False
                    break
            # Frees memory as it goes: a long snapshot under many writes would otherwise keep every changed entry to its
            # end.
            self._drop_passed()
            self.visited_most = max(self.visited_most, visited)
            if is_last and rows:
                encoded.append(_chunk(_ENTRIES, rows))
            yield b"".join(encoded)

    def _coming(self) -> Iterator[str]:
        """The keys after the last encoded one: those of the map, and those deleted since the snapshot began."""
        present = self._entries.irange(self._passed, inclusive=(False, True))
        if not self._preimages:
            return present
        return _without_repeats(merge(present, self._preimages.irange(self._passed, inclusive=(False, True))))

    def _drop_passed(self) -> None:
        while self._preimages and self._preimages.peekitem(0)[0] <= self._passed:
            self._preimages.popitem(0)


def _without_repeats(keys: Iterator[str]) -> Iterator[str]:
    last = ""
    for key in keys:
        if key != last:
            yield key
        last = key


def _chunk(kind: int, value: Any) -> bytes:
    body = _encoder.encode(value)
    return _CHUNK.pack(len(body), kind) + body


def encode_snapshot(machine: StateMachine) -> bytes:
    """Encodes the whole state at once."""
    frozen = Frozen(machine)
    try:
        return b"".join(frozen.slices())
    finally:
        frozen.end()


# --- decoding ---------------------------------------------------------------------------------------------------------


def load_snapshot(read: Callable[[int], bytes], budget: Budget = Budget()) -> StateMachine:  # noqa: B008 (a constant)
    """Returns the state machine that a snapshot contains. `read`: the next bytes, fewer than requested only at the end.

    Raises DecodeError for anything but a complete snapshot, FormatUnknown for another version.
    """
    try:
        return _load(_chunks(read), budget)
    except (*cmd.NOT_MSGPACK, StopIteration) as error:
        raise errors.DecodeError(f"malformed snapshot: {error}") from None


def _load(chunks: Iterator[tuple[int, bytes]], budget: Budget) -> StateMachine:
    kind, body = next(chunks)
    if kind != _HEAD:
        raise errors.DecodeError("a snapshot without a head")
    revision, time_ms, entry_count, client_count = _head_decoder.decode(body)
    machine = StateMachine(budget)
    rows: list[tuple[str, Entry]] = []
    last = ""
    for kind, body in chunks:
        if kind == _ENTRIES and not machine.clients:
            entries = _entries_decoder.decode(body)
            for key, entry in entries:
                _check_entry(key, last, entry, revision)
                last = key
            rows += entries
        elif kind == _CLIENTS:
            for client, sequence, used_ms, answer in _clients_decoder.decode(body):
                machine.clients[client] = Remembered(sequence, used_ms, answer)
        else:
            raise errors.DecodeError(f"malformed snapshot: unexpected chunk of kind {kind}")
    # The digest of the file proves its bytes; the counts prove that its writer put every entry into them.
    if (len(rows), len(machine.clients)) != (entry_count, client_count):
        raise errors.DecodeError(f"malformed snapshot: {len(rows)} of {entry_count} entries")
    machine.restore(revision, time_ms, rows)
    return machine


def _check_entry(key: str, last: str, entry: Entry, revision: int) -> None:
    if key <= last:
        raise errors.DecodeError(f"malformed snapshot: key {key[:60]!r} is not greater than the one before it")
    if not 0 < entry.create_revision <= entry.mod_revision <= revision or entry.version < 1:
        raise errors.DecodeError(f"the numbers of {key[:60]!r} in a snapshot do not add up")
    if entry.deadline_ms < 0 or entry.lease_ms < 0 or (entry.lease_ms and not entry.deadline_ms):
        raise errors.DecodeError(f"the numbers of {key[:60]!r} in a snapshot do not add up")


def _chunks(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields kind and body of each chunk up to END, which must be the last."""
    front = read(_FRONT.size)
    if len(front) < _FRONT.size or _FRONT.unpack(front)[0] != MAGIC:
        raise errors.DecodeError("not a snapshot of the metadata store")
    version = _FRONT.unpack(front)[1]
    if version != VERSION:
        raise errors.FormatUnknown(f"snapshot version {version} is not known", hint="use the version that wrote it")
    while len(front := read(_CHUNK.size)) == _CHUNK.size:
        size, kind = _CHUNK.unpack(front)
        if size > _CHUNK_BYTES_MAX or len(body := read(size)) < size:
            break
        if kind == _END:
            if body != _NIL or read(1):
                raise errors.DecodeError("data after the end of a snapshot")
            return
        yield kind, body
    raise errors.DecodeError("a snapshot is cut off")
