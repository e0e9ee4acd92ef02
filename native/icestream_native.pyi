"""Types of the native extension: `native/src` is the code, `icestream.wal.format` and `icestream.model.block` are the
contract for every byte."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, final

from _typeshed import ReadableBuffer

__all__: Final = [
    "CONTRACT",
    "FrameServer",
    "GrpcServer",
    "LogWriter",
    "RaftCore",
    "check_block",
    "crc32",
    "decode_columns",
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

# --- the native protocol: native/src/wire/frames says what each row means ---

class FrameServer:
    def __new__(
        cls,
        *,
        hello_bytes_max: int,
        connection_bytes_max: int,
        pending_bytes_max: int,
        answer_bytes_max: int,
        parts_max: int,
        window_max: int,
        row_bytes_max: int,
        rows_bytes_max: int,
        unpacked_bytes_max: int,
        ranges_max: int,
        offset_max: int,
        delay_ms_max: int,
    ) -> FrameServer: ...
    def fileno(self) -> int: ...
    def listen(self, descriptor: int, keep_alive_seconds: int) -> None: ...
    def listen_tls(
        self, descriptor: int, keep_alive_seconds: int, pem: Pem, half_open_max: int, handshake_seconds: float
    ) -> None: ...
    def set_tls(self, pem: Pem) -> None: ...
    def handshakes(self) -> tuple[int, int, int, int]: ...
    def set_accepting(self, is_accepting: bool) -> None: ...
    def stop_listening(self) -> None: ...
    def poll(self) -> list[tuple[Any, ...]]: ...
    def open(self, connection: int, frame_bytes_max: int) -> None: ...
    def declare(
        self,
        connection: int,
        handle: int,
        shard: int,
        slot: int,
        lane: int,
        producer_id: int,
        epoch: int,
        forbidden: int,
    ) -> None: ...
    def forget(self, connection: int, handle: int) -> None: ...
    def declare_consumer(
        self, connection: int, handle: int, slot: int, shards: int, allows_cumulative: bool
    ) -> None: ...
    def forget_consumer(self, connection: int, handle: int) -> None: ...
    def send(self, connection: int, pieces: Sequence[bytes]) -> int: ...
    def send_all(self, batches: Sequence[tuple[int, Sequence[bytes]]]) -> list[int]: ...
    def set_queue_high(self, connection: int, size: int) -> None: ...
    def published(self, connection: int, number: int, frame: bytes) -> None: ...
    def settle(
        self, batch: int, base_offsets: Sequence[int], exceptions: Mapping[int, bytes] | None = None
    ) -> None: ...
    def split(self, batch: int) -> list[int]: ...
    def pending_of(self, connection: int) -> int: ...
    def inspect(self, connection: int) -> tuple[int, int, int, bool] | None: ...
    def pending_bytes(self) -> int: ...
    def pause(self, connection: int) -> None: ...
    def resume(self, connection: int) -> None: ...
    def end(self, connection: int) -> None: ...
    def abort(self, connection: int) -> None: ...
    def close(self) -> None: ...

# --- gRPC: native/src/wire/grpc says what each number means ---

Declared: TypeAlias = tuple[int, int, int]  # parent field (0: none), field, kind
# Chain, key, authorities of clients, whether they must show a certificate, whether TLS 1.2 is refused.
Pem: TypeAlias = tuple[bytes, bytes, bytes | None, bool, bool]

def check_tls(pem: Pem) -> None: ...
def decode_columns(
    columns: Sequence[Declared], requests: Sequence[bytes]
) -> tuple[list[bool], bytes, tuple[bytes | tuple[bytes, bytes], ...]]: ...

class GrpcServer:
    def __new__(
        cls,
        listener: int,
        *,
        batched: Sequence[tuple[str, Sequence[Declared], tuple[int, int] | None]],
        streams: Sequence[str],
        metadata_keys: Sequence[str],
        connections_max: int,
        message_bytes_max: int,
        pending_bytes_max: int,
        stream_bytes_low: int,
        keepalive_ms: int,
        tls: Pem | None = None,
    ) -> GrpcServer: ...
    def fileno(self) -> int: ...
    def poll(self) -> list[tuple[Any, ...]]: ...
    def complete(
        self, batch: int, rows: Sequence[int] | None = None, failures: Mapping[int, tuple[int, str]] | None = None
    ) -> None: ...
    def reply(self, call: int, body: bytes) -> None: ...
    def fail(self, call: int, code: int, message: str) -> None: ...
    def push(self, stream: int, messages: Sequence[bytes]) -> int | None: ...
    def finish(self, stream: int, code: int, message: str) -> None: ...
    def set_tls(self, pem: Pem) -> None: ...
    def pending_bytes(self) -> int: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...

# --- Raft: icestream.metadata.core says what each call means ---

class RaftCore:
    def __new__(
        cls,
        node_id: int,
        election_tick: int,
        heartbeat_tick: int,
        hard_state: tuple[int, int, int],
        conf: bytes,
        entries: Sequence[bytes],
        snapshot: bytes | None = None,
        applied: int = 0,
        *,
        message_bytes_max: int = ...,
        messages_in_flight_max: int = ...,
    ) -> RaftCore: ...
    def tick(self) -> bool: ...
    def step(self, message: bytes) -> int | None: ...
    def campaign(self) -> None: ...
    def propose(self, batch: Sequence[bytes]) -> bool: ...
    def read_index(self, context: bytes) -> None: ...
    def transfer_leader(self, to: int) -> None: ...
    def propose_conf(self, changes: Sequence[tuple[int, int]], transition: int, context: bytes) -> bool: ...
    def apply_conf(self, kind: int, data: bytes) -> bytes: ...
    def ready(self) -> tuple[Any, ...] | None: ...
    def persisted(self, number: int) -> None: ...
    def applied(self, index: int) -> None: ...
    def snapshot(self, index: int, conf: bytes, data: bytes) -> bytes: ...
    def compact(self, index: int) -> None: ...
    def report_snapshot(self, node_id: int, succeeded: bool) -> None: ...
    def report_unreachable(self, node_id: int) -> None: ...
    def set_election_timeout(self, ticks: int) -> None: ...
    def status(self) -> dict[str, Any]: ...
