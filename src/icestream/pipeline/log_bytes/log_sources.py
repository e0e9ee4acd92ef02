"""Two sources of log bytes. Each copies the bytes (hazard 15) and returns errors as values.

LogFolder   the file by its number, with pread. A file that is open may be recycled meanwhile: records of another
            generation are not accepted, and `has_file` checks again afterwards (hazard 29)
LogOwner    GET /wal/{number}?from=…&to=…&lease=… of the broker, in pieces, over one connection. With TLS the broker is
            recognised by its certificate, which the plan names: executors need no authority, and a token is not sent
            to anything else (docs/adr/0077)
"""

from __future__ import annotations

import hashlib
import http.client
import os
import ssl
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from icestream import errors, limits
from icestream.model.task_messages import TaskError, TaskErrorKind
from icestream.pipeline.round_plan import LogSource
from icestream.wal import log_file
from icestream.wal.format import RECORDS_START


class LogReadSource(Protocol):
    """A source of log bytes."""

    def read(self, number: int, start: int, end: int) -> bytes | TaskError:
        """Returns the bytes [start, end) of a log file; fewer are an error."""

    def has_file(self, number: int) -> bool:
        """Returns whether the log still has the file of this number."""


class LogFolder:
    """The log of this machine."""

    def __init__(self, folder: Path, log_id: bytes) -> None:
        self._folder = folder
        self._log_id = log_id

    def read(self, number: int, start: int, end: int) -> bytes | TaskError:
        try:
            file = self._open(number)
        except OSError as error:
            return TaskError(TaskErrorKind.STALE, f"{self._path(number)}: {error.strerror}")
        try:
            # Checked after the file is open: a file that is recycled keeps its descriptor, and gets another number in
            # its header.
            if not self._is_ours(file, number):
                return TaskError(TaskErrorKind.STALE, f"{self._path(number)} was recycled")
            data = _read(file, start, end - start)
        except OSError as error:
            return TaskError(TaskErrorKind.UNREACHABLE, f"{self._path(number)}: {error.strerror}")
        finally:
            os.close(file)
        if len(data) < end - start:
            return TaskError(TaskErrorKind.STALE, f"{self._path(number)} ends at {start + len(data)}, not at {end}")
        return data

    def has_file(self, number: int) -> bool:
        try:
            file = self._open(number)
        except OSError:
            return False
        try:
            return self._is_ours(file, number)
        except OSError:
            return False
        finally:
            os.close(file)

    def _open(self, number: int) -> int:
        """Opens the file of this number, of the log or of a spill log: they share the numbers (hazard 8)."""
        try:
            return os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return os.open(self._folder / log_file.spill_name(number), os.O_RDONLY | os.O_CLOEXEC)

    def _path(self, number: int) -> Path:
        return self._folder / log_file.log_name(number)

    def _is_ours(self, file: int, number: int) -> bool:
        try:
            header = log_file.decode_header(os.pread(file, RECORDS_START, 0))
        except errors.IcestreamError:
            return False
        return header.number == number and header.log_id == self._log_id


def _read(file: int, start: int, size: int) -> bytes:
    """Reads with one call below 2 GiB, which is as much as the kernel returns at once."""
    first = os.pread(file, size, start)
    if len(first) == size or not first:
        return first
    parts = [first]
    while (read := sum(map(len, parts))) < size and (part := os.pread(file, size - read, start + read)):
        parts.append(part)
    return b"".join(parts)


class LogOwner:
    """The log of a broker, over HTTP."""

    def __init__(self, source: LogSource, piece_bytes: int = limits.LOG_RANGE_BYTES_MAX) -> None:
        self._source = source
        self._piece_bytes = piece_bytes
        self._connection: http.client.HTTPConnection | None = None

    def read(self, number: int, start: int, end: int) -> bytes | TaskError:
        parts: list[bytes] = []
        while start < end:
            piece = self._piece(number, start, min(end, start + self._piece_bytes))
            if isinstance(piece, TaskError):
                return piece
            if not piece:
                return TaskError(TaskErrorKind.STALE, f"log file {number} of {self._source.address} ends at {start}")
            parts.append(piece)
            start += len(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def has_file(self, number: int) -> bool:
        return not isinstance(self._piece(number, RECORDS_START, RECORDS_START + 8), TaskError)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _piece(self, number: int, start: int, end: int) -> bytes | TaskError:
        """Reads a piece. Reconnects once if the connection was closed meanwhile."""
        # An idle connection may have been closed by the broker: that is not a failure, connect anew once.
        if self._connection is not None:
            try:
                return self._request(number, start, end)
            except (OSError, http.client.HTTPException):
                self.close()
        try:
            return self._request(number, start, end)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return TaskError(TaskErrorKind.UNREACHABLE, f"{self._source.address}: {type(error).__name__} {error}")

    def _request(self, number: int, start: int, end: int) -> bytes | TaskError:
        """Sends one request for a piece of a log file."""
        if self._connection is None:
            self._connection = self._connected()
        query = urlencode({"from": start, "to": end, "lease": self._source.lease})
        self._connection.request(
            "GET", f"/wal/{number}?{query}", headers={"Authorization": f"Bearer {self._source.token}"}
        )
        response = self._connection.getresponse()
        body = response.read()
        if response.status == http.client.OK:
            return body
        trouble = {410: TaskErrorKind.STALE, 404: TaskErrorKind.STALE}.get(response.status, TaskErrorKind.UNREACHABLE)
        text = body[:200].decode("utf-8", "replace")
        return TaskError(trouble, f"log file {number} of {self._source.address}: {response.status} {text}")

    def _connected(self) -> http.client.HTTPConnection:
        """A connection to the broker. Raises OSError also if the certificate is not the one in the plan."""
        address = urlsplit(self._source.address if "//" in self._source.address else f"//{self._source.address}")
        host, port = address.hostname or "", address.port
        if address.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=limits.LOG_PIECE_SECONDS_MAX)
        # Not verified by an authority: the digest names the one certificate that is expected.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=limits.LOG_PIECE_SECONDS_MAX, context=context)
        connection.connect()
        certificate = connection.sock.getpeercert(binary_form=True)
        if certificate is None or hashlib.sha256(certificate).hexdigest() != self._source.certificate:
            connection.close()
            raise ssl.SSLError("another certificate than that of the broker")
        return connection


def sources_of(source: LogSource, number: int, owner: LogOwner) -> tuple[LogReadSource, LogReadSource]:
    """Returns the source of a file, and the source for a second read if it seems damaged: the broker that owns it.
    Another machine may have another log at the same path, so the header of the file is checked first."""
    if source.directory:
        folder = LogFolder(Path(source.directory), bytes.fromhex(source.log_id))
        if not source.address:
            return folder, folder
        if folder.has_file(number):
            return folder, owner
    return owner, owner
