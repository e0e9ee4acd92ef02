"""The planted bugs: each is one mistake that could be made, put into the running code.

A bug is a function that gets `patch` (`setattr`, or pytest's `monkeypatch.setattr`, which takes it back). Those of the
native extension are in native/src/planted.rs and chosen by ICESTREAM_PLANTED.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from icestream import errors
from icestream.runtime.checksum import crc32
from icestream.runtime.files import Directory
from icestream.wal import file_states, record_scan, recovery
from icestream.wal import format as wire
from icestream.wal.appender import Appender
from icestream.wal.checkpoint_writer import CheckpointWriter
from icestream.wal.file_lifecycle import FileLifecycle
from icestream.wal.file_summary import FileSummary

Patch = Callable[[Any, str, Any], None]

_RECORD_BYTES = slice(44, 48)
_BODY_BYTES = slice(48, 52)


def plant(name: str, patch: Patch) -> None:
    """Puts the bug with this name into this process."""
    BUGS[name](patch)


def everywhere(patch: Patch, original: object, replacement: object) -> None:
    """Replaces a function in every module of the log that has imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("icestream.wal"):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    patch(module, attribute, replacement)


def use_python_twins(patch: Patch) -> None:
    """The native encoder and scanner step aside, so that a bug in their twins shows."""
    everywhere(patch, wire.encode_record, wire.encode_record_python)
    everywhere(patch, record_scan.scan_records, record_scan.scan_records_python)
    everywhere(patch, record_scan.find_headers, record_scan.find_headers_python)


# --- ack before sync --------------------------------------------------------------------------------------------------


def ack_when_written(patch: Patch) -> None:
    """The sync is done, but in `always` too the ack does not wait for it."""
    progress = Appender.progress

    def too_early(self: Appender, written: int, synced: int) -> None:
        for record in self._unreleased:
            record.needs_sync = False
        progress(self, written, synced)

    patch(Appender, "progress", too_early)


def sync_left_out(patch: Patch) -> None:
    """A record in `always` asks for no sync at all."""
    plan = Appender._plan

    def without_sync(self: Appender, number: int, position: int, data: bytes, *, sync: bool) -> int:
        is_record = data[5:6] == bytes([wire.RecordKind.DATA])
        return plan(self, number, position, data, sync=sync and not is_record)

    ack_when_written(patch)
    patch(Appender, "_plan", without_sync)


# --- CRC without length -----------------------------------------------------------------------------------------------


def crc_without_length(patch: Patch) -> None:
    """Neither `record_bytes` nor `body_bytes` is under any CRC, in what is written and in what is accepted."""
    use_python_twins(patch)
    everywhere(patch, wire.encode_record_python, _encode_record_without_length)
    crc_without_length_read(patch)


def crc_without_length_read(patch: Patch) -> None:
    """The reading half in Python, which the planted native encoder and scanner need beside them."""
    everywhere(patch, wire.decode_header, _decode_header_without_length)
    everywhere(patch, wire.section_is_good, _section_is_good_without_length)


def _blank(data: bytes | memoryview, field: slice) -> bytes:
    copy = bytearray(data)
    copy[field] = bytes(field.stop - field.start)
    return bytes(copy)


def _entry_crc(entry: bytes | memoryview, body: bytes | memoryview) -> int:
    return crc32(body, crc32(_blank(bytes(entry)[: wire.ENTRY_BYTES - 4], _BODY_BYTES)))


def _header_crc(front: bytes, directory: bytes) -> int:
    parts = [directory[at : at + wire.ENTRY_BYTES] for at in range(0, len(directory), wire.ENTRY_BYTES)]
    return crc32(b"".join(_blank(part, _BODY_BYTES) for part in parts), crc32(_blank(front, _RECORD_BYTES)))


_encode_record_whole = wire.encode_record_python
_decode_header_whole = wire.decode_header


def _encode_record_without_length(*arguments: Any) -> bytes:
    record = bytearray(_encode_record_whole(*arguments))
    header = _decode_header_whole(bytes(record), 0, arguments[5])
    for entry in wire.decode_entries(bytes(record), 0, header):
        at, start = entry.position - header.position, entry.body_position - header.position
        crc = _entry_crc(record[at : at + wire.ENTRY_BYTES], bytes(record[start : start + entry.body_bytes]))
        record[at + wire.ENTRY_BYTES - 4 : at + wire.ENTRY_BYTES] = crc.to_bytes(4, "little")
    crc = _header_crc(bytes(record[: wire.HEADER_BYTES - 4]), bytes(record[wire.HEADER_BYTES : header.header_bytes]))
    record[wire.HEADER_BYTES - 4 : wire.HEADER_BYTES] = crc.to_bytes(4, "little")
    return bytes(record)


def _decode_header_without_length(data: bytes | memoryview, at: int, position: int) -> wire.RecordHeader:
    """Where the weak CRC matches, replaces it by the right one before the header is decoded as usual."""
    count = int.from_bytes(data[at + 48 : at + 52], "little")
    head = bytearray(data[at : at + wire.HEADER_BYTES + wire.ENTRY_BYTES * min(count, 2**14)])
    if len(head) >= wire.HEADER_BYTES:
        front, directory = bytes(head[: wire.HEADER_BYTES - 4]), bytes(head[wire.HEADER_BYTES :])
        if int.from_bytes(head[wire.HEADER_BYTES - 4 : wire.HEADER_BYTES], "little") == _header_crc(front, directory):
            head[wire.HEADER_BYTES - 4 : wire.HEADER_BYTES] = crc32(directory, crc32(front)).to_bytes(4, "little")
    return _decode_header_whole(bytes(head), 0, position)


def _section_is_good_without_length(entry: bytes | memoryview, body: bytes | memoryview, crc: int) -> bool:
    return _entry_crc(entry, body) == crc


# --- recycled record accepted -----------------------------------------------------------------------------------------


def recycled_accepted(patch: Patch) -> None:
    """The scanner does not look at the generation: the past of a recycled file passes for its present."""

    def good_header(data: bytes | memoryview, at: int, position: int, generation: int) -> wire.RecordHeader | None:
        try:
            return wire.decode_header(data, at, position)
        except errors.DecodeError:
            return None

    use_python_twins(patch)
    everywhere(patch, record_scan.decode_good_header, good_header)


# --- checkpoint skipped -----------------------------------------------------------------------------------------------


def freed_without_checkpoint(patch: Patch) -> None:
    """A file is free as soon as every shard's floor has passed it."""

    def below_the_floors(self: FileLifecycle) -> list[FileSummary]:
        shards = self.state.shards
        return file_states.freeable(self.files, self._appender.synced_lsn, lambda key: shards[key].floor)

    patch(FileLifecycle, "_freeable", below_the_floors)
    patch(FileLifecycle, "free_due_files", FileLifecycle.free_files)


def checkpoint_not_written(patch: Patch) -> None:
    """The checkpoint counts, but it was never written."""
    _write_checkpoint_into(patch, _Nowhere)


def checkpoint_name_not_synced(patch: Patch) -> None:
    """The checkpoint has its name, but the directory is not synced before it counts."""
    _write_checkpoint_into(patch, _Unsynced)


def _write_checkpoint_into(patch: Patch, replacement: Callable[[Directory], Any]) -> None:
    write = CheckpointWriter.write

    def elsewhere(self: CheckpointWriter, *arguments: Any) -> None:
        directory = self._directory
        self._directory = replacement(directory)
        try:
            write(self, *arguments)
        finally:
            self._directory = directory

    patch(CheckpointWriter, "write", elsewhere)


class _Unsynced:
    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)

    def sync(self) -> None:
        """Left out."""


class _Nowhere:
    """Takes everything and keeps nothing."""

    def __init__(self, directory: Directory) -> None:
        self.names = directory.names

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: self


# --- cut instead of report --------------------------------------------------------------------------------------------


def cut_instead_of_report(patch: Patch) -> None:
    """The first record that is not good is the end of the log, whatever is known about it."""

    def cut(self: Any, file: Any, data: bytes, end: int, lsn: int) -> None:
        self.report.tail_file, self.report.tail_position = file.name, end

    patch(recovery.Replay, "_classify_end", cut)


BUGS: Mapping[str, Callable[[Patch], None]] = {
    "ack_when_written": ack_when_written,
    "sync_left_out": sync_left_out,
    "crc_without_length": crc_without_length,
    "crc_without_length_read": crc_without_length_read,
    "recycled_accepted": recycled_accepted,
    "freed_without_checkpoint": freed_without_checkpoint,
    "checkpoint_not_written": checkpoint_not_written,
    "checkpoint_name_not_synced": checkpoint_name_not_synced,
    "cut_instead_of_report": cut_instead_of_report,
}
