"""Transfers snapshots between nodes: the state file in chunks over a separate connection, verified by SHA-256.

The core's message only describes the snapshot. The receiver passes the message to its core when the whole state is in a
file. The sender always reports the end to its core, because the core would wait forever otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from icestream import errors, limits
from icestream.cluster.peer_link import PeerLink
from icestream.cluster.wire import PeerFrame, id_text
from icestream.metadata import eraftpb
from icestream.metadata.log_store import LogStore
from icestream.metadata.node import Node
from icestream.metadata.snapshot_file import SnapshotHead, SnapshotWriter, received_name, snapshot_of
from icestream.observability import metrics
from icestream.observability.log import get_logger

_log = get_logger("cluster")
Dial = Callable[[int], Awaitable[PeerLink]]


class SnapshotSender:
    """Sends snapshots to followers, one at a time to each."""

    def __init__(self, node: Node, log: LogStore, dial: Dial) -> None:
        self._node = node
        self._log = log
        self._dial = dial
        self._sending: set[int] = set()

    def start(self, to: int, message: bytes) -> None:
        """Starts the transfer that the core's message announces."""
        if to in self._sending:
            return  # already under way: its end is reported, and the core requests another snapshot if needed
        self._sending.add(to)
        self._node.tasks.start(self._send(to, message), f"snapshot-to-{id_text(to)}")

    async def _send(self, to: int, message: bytes) -> None:
        succeeded = False
        try:
            sent = await self._stream(to, message)
            succeeded = True
            _log.info("snapshot sent", rpc="InstallSnapshot", node=id_text(to), bytes=sent)
        except (errors.IcestreamError, OSError, TimeoutError) as error:
            _log.warning("snapshot transfer failed", rpc="InstallSnapshot", node=id_text(to), error=str(error))
        finally:
            self._sending.discard(to)
            self._node.snapshot_sent(to, succeeded=succeeded)

    async def _stream(self, to: int, message: bytes) -> int:
        """Sends the state in chunks; returns its size."""
        name, size = snapshot_of(eraftpb.snapshot_in(message).data)
        file = await self._log.open_snapshot_file(name)
        try:
            link = await self._dial(to)
            try:
                # The receiver writes to its disk: it may read nothing for longer than a Raft connection tolerates.
                link.be_patient()
                await link.write(PeerFrame.INSTALL_SNAPSHOT, message)
                for position in range(0, size, limits.SNAPSHOT_CHUNK_BYTES):
                    data = await self._log.read_state(file, position, min(limits.SNAPSHOT_CHUNK_BYTES, size - position))
                    await link.write(PeerFrame.CHUNK, data)
                    metrics.RAFT_SNAPSHOT_BYTES.value += len(data)
                await link.end_snapshot()
            finally:
                link.close()
        finally:
            file.close()
        return size


class IncomingSnapshot:
    """A snapshot that is being received into a file."""

    def __init__(self, log: LogStore, name: str, size: int, writer: SnapshotWriter) -> None:
        self._log = log
        self._name = received_name(name)
        self._missing_bytes = size
        self._writer: SnapshotWriter | None = writer

    @classmethod
    async def begin(cls, log: LogStore, message: bytes) -> IncomingSnapshot:
        """Starts receiving. Raises DecodeError if the message does not describe a snapshot."""
        parts = eraftpb.snapshot_in(message)
        name, size = snapshot_of(parts.data)
        writer = await log.begin_received(SnapshotHead(parts.index, parts.term, log.log_id, parts.conf))
        return cls(log, name, size, writer)

    async def add(self, data: bytes) -> None:
        """Appends a chunk. Raises DecodeError beyond the announced size."""
        assert self._writer is not None
        self._missing_bytes -= len(data)
        if self._missing_bytes < 0:
            raise errors.DecodeError("snapshot is longer than announced")
        await self._log.add_received(self._writer, data)

    async def finish(self) -> None:
        """Completes the file; the core then installs it or not, and `release` follows."""
        assert self._writer is not None
        if self._missing_bytes:
            raise errors.DecodeError(f"snapshot is {self._missing_bytes} bytes shorter than announced")
        await self._log.finish_received(self._writer, self._name)
        self._writer = None

    async def release(self) -> None:
        """Ends the transfer: the file stays only if the core has installed it."""
        await self._log.release_received(self._name)

    async def abort(self) -> None:
        """Removes the unfinished file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await self._log.abandon_received(writer)
