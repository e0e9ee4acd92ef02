"""Types of the native extension: `native/src` is the code, `icestream.wal.format` and `icestream.model.block` are the
contract for every byte."""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias, final

from _typeshed import ReadableBuffer

__all__: Final = [
    "CONTRACT",
    "LogWriter",
    "check_block",
    "crc32",
    "encode_record",
    "find_headers",
    "read_at",
    "row_keys",
    "scan_records",
    "select_rows",
]

# A sequence of parts, as a list or tuple, is joined.
_Body: TypeAlias = ReadableBuffer | Sequence[ReadableBuffer]
# The fields of format.Section.
_Section: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, _Body]
# position, lsn, kind, synced_through, append_time_us, header_bytes, record_bytes, section_count
_Record: TypeAlias = tuple[int, int, int, int, int, int, int, int]

CONTRACT: Final[int]

def encode_record(
    kind: int,
    lsn: int,
    generation: int,
    synced_through: int,
    append_time_us: int,
    position: int,
    align: int,
    sections: Sequence[_Section],
) -> bytes:
    """The bytes of one record that will stand at `position`: the twin of `format.encode_record`."""

def scan_records(
    data: ReadableBuffer, position: int, generation: int, lsn: int
) -> tuple[list[_Record], int, int, Literal["footer", "end", "bad"]]:
    """The good records from `position` on, where they end, the LSN expected there, and why the walk ended."""

def find_headers(data: ReadableBuffer, position: int, generation: int, lsn_min: int) -> list[tuple[int, int, int]]:
    """(position, lsn, synced_through) of every good header of this generation with at least `lsn_min`."""

def crc32(data: ReadableBuffer, value: int = 0) -> int:
    """CRC-32 as `zlib.crc32`."""

def check_block(data: ReadableBuffer) -> tuple[int, int, int, int, int, int]:
    """The twin of `block_check.check_block_python`; ValueError says what does not fit."""

def select_rows(body: ReadableBuffer, first_row: int, rows: int) -> bytes:
    """The twin of `block_check.select_rows_python`; ValueError says what does not fit."""

def row_keys(body: ReadableBuffer) -> list[bytes]:
    """The twin of `block_check.row_keys_python`; ValueError says what does not fit."""

def read_at(fd: int, position: int, length: int) -> bytes:
    """Up to `length` bytes at `position`, read without the GIL; fewer only at the end of the file."""

@final
class LogWriter:
    """Writes and syncs a log in threads of its own. Tickets rise, from 1.

    When one file follows another, the newest submission of the former must be synced or ask for it (ValueError):
    `synced` is one number for all files.
    """

    def __new__(cls) -> LogWriter: ...
    def fileno(self) -> int:
        """A descriptor that becomes readable when `poll` has news."""

    def submit(self, ticket: int, fd: int, position: int, data: bytes, sync: bool) -> None:
        """Queues a write, and a sync after it. `data` is held until a `poll` after it is written.

        RuntimeError after an error or `close`.
        """

    def write_inline(self, ticket: int, fd: int, position: int, data: bytes, sync: bool) -> int:
        """Writes (and syncs) in the calling thread; gives the nanoseconds of the sync. OSError when that fails.

        RuntimeError while submissions are under way, after an error or `close`.
        """

    def request_sync(self, fd: int) -> None:
        """Syncs what is written so far, beside further writes. All of it lies in `fd` or is synced already."""

    def start_write_back(self, fd: int, position: int, length: int) -> None:
        """A hint: the kernel may start writing this range to disk once it is written to the file."""

    def poll(self) -> tuple[int, int, int, tuple[int, Literal["write", "sync"], int] | None]:
        """(written, synced, sync_ns, error); error is (first ticket that did not complete, step, errno)."""

    def queued_bytes(self) -> int:
        """Bytes submitted and not yet written."""

    def sync_count(self) -> int:
        """Syncs done so far, inline ones too."""

    def close(self) -> None:
        """Finishes what is queued and ends the threads. `poll` still answers afterwards."""
