"""Uploads objects: bytes are read once, hashed, encrypted and written in one pass; then the object gets its name.

The name of an object is the SHA-256 of its stored bytes, which is known at their end, so they go into a temporary file
first. Of a directory target that file becomes the object; for a bucket it is uploaded from there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from icestream import limits
from icestream.backup.backup_layout import object_name
from icestream.backup.backup_root import ObjectRef
from icestream.backup.backup_target import BackupTarget
from icestream.backup.encryption import NONCE_PREFIX_BYTES, BackupKey, encrypt
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Offload


class WriteRate:
    """A rate for bytes; may be ahead by one second. `delay` is pure but for its own state."""

    def __init__(self, bytes_per_second: float) -> None:
        """0: no limit."""
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def delay(self, size: int, now: float) -> float:
        """The seconds to wait before `size` bytes may be written at time `now`."""
        if not self._rate:
            return 0.0
        with self._lock:
            self._free_at = max(self._free_at, now - 1.0) + size / self._rate
            return max(0.0, self._free_at - now)


class ObjectUpload:
    """Uploads to one target, with one rate limit for everything that is written (B-15)."""

    def __init__(
        self,
        target: BackupTarget,
        offload: Offload,
        clock: Clock,
        randomness: Randomness,
        key: BackupKey | None = None,
        bucket: WriteRate | None = None,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.target = target
        self.key = key
        self.uploaded = 0  # objects that were not there before
        self.reused: set[str] = set()  # those that were: a deletion may remove them until a root names them
        self._offload = offload
        self._clock = clock
        self._randomness = randomness
        self._bucket = bucket or WriteRate(0)
        self._reading = asyncio.Semaphore(limits.BACKUP_READS_AT_ONCE)
        self._pause = threading.Event()  # never set: its wait is a pause of the thread
        self._on_bytes = on_bytes

    async def upload(self, chunks: Callable[[], Iterable[bytes]], role: str, suffix: str) -> ObjectRef:
        """Uploads what `chunks` yields, which is read in a thread. Raises what it raises."""
        reference, _ = await self.upload_object(chunks, role, suffix)
        await self.keep_names([reference])
        return reference

    async def upload_object(
        self, chunks: Callable[[], Iterable[bytes]], role: str, suffix: str
    ) -> tuple[ObjectRef, bool]:
        """As `upload`, but for its name, which is durable after keep_names; also whether the object is new."""
        nonce = self._randomness.token(NONCE_PREFIX_BYTES)
        # Few at once have the processors; the others wait for the disk or the network meanwhile.
        async with self._reading:
            path, reference = await self._offload.run(lambda: self._spool(chunks, role, suffix, nonce))
        is_new = await self.target.adopt(path, reference.path)
        self.count(reference, is_new=is_new)
        return reference, is_new

    async def keep_names(self, references: Iterable[ObjectRef]) -> None:
        """Makes durable the names of uploaded objects, those that were there before included: what uploaded them may
        have ended before it did so."""
        await self.target.keep_names([reference.path for reference in references])

    def count(self, reference: ObjectRef, *, is_new: bool) -> None:
        """Counts an object that was uploaded, here or by a task."""
        if is_new:
            self.uploaded += 1
        else:
            self.reused.add(reference.path)

    async def put_document(self, name: str, data: bytes) -> None:
        """Writes a small object exclusively, within the rate limit."""
        await self._offload.run(lambda: self._wait(len(data)))
        await self.target.put_new(name, data)

    def _spool(
        self, chunks: Callable[[], Iterable[bytes]], role: str, suffix: str, nonce: bytes
    ) -> tuple[Path, ObjectRef]:
        plain, stored = hashlib.sha256(), hashlib.sha256()
        sizes = [0, 0]

        def read() -> Iterator[bytes]:
            for chunk in chunks():
                plain.update(chunk)
                sizes[0] += len(chunk)
                self._on_bytes(len(chunk))
                yield chunk

        # Spooled first: the name of an object is the digest of its bytes, which is known when they have all been read.
        number, path = tempfile.mkstemp(dir=self.target.spool)
        try:
            with os.fdopen(number, "wb") as file:
                for chunk in read() if self.key is None else encrypt(read(), self.key, role, nonce):
                    self._wait(len(chunk))
                    if self.key is not None:
                        stored.update(chunk)
                    sizes[1] += len(chunk)
                    file.write(chunk)
        except BaseException:
            Path(path).unlink(missing_ok=True)
            raise
        digest = (plain if self.key is None else stored).hexdigest()
        name = object_name(digest, suffix, is_encrypted=self.key is not None)
        key_id = self.key.id if self.key is not None else ""
        return Path(path), ObjectRef(name, sizes[1], digest, sizes[0], plain.hexdigest(), key_id)

    def _wait(self, size: int) -> None:
        seconds = self._bucket.delay(size, self._clock.monotonic_ns() / 1e9)
        if seconds > 0:
            self._pause.wait(seconds)
