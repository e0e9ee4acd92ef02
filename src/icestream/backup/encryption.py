"""Encryption of objects: AES-256-GCM in frames (ADR 72).

    "ICESENC1" | u16 length of the key id | key id | 8 bytes nonce prefix
    then frames: at most 1 MiB of plain bytes each, encrypted, with their tag of 16 bytes. Every frame but the last one
    has exactly 1 MiB; an empty object has one empty frame
    nonce of frame n            prefix | u32 n, big-endian
    associated data of frame n  "ICESENC1" | u16 length, key id | u16 length, role | u32 n | u8 is_last

Big-endian throughout. A cut, reordered or mixed object fails, and so does one that is read under another role.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import shlex
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from icestream import errors, limits
from icestream.runtime.secret_file import read_secret_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ALGORITHM: Final = "AES-256-GCM, frames of 1 MiB"
MAGIC: Final = b"ICESENC1"
NONCE_PREFIX_BYTES: Final = 8
KEY_BYTES: Final = 32
_FRAME_BYTES: Final = limits.MIB
_TAG_BYTES: Final = 16
_LENGTH: Final = struct.Struct(">H")
_FRAME: Final = struct.Struct(">IB")
_NUMBER: Final = struct.Struct(">I")


class BackupKey:
    """A key and its id, which tells nothing about it."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise errors.ConfigurationError(
                f"the backup key has {len(key)} bytes, expected {KEY_BYTES}",
                hint="make one with `openssl rand -hex 32`",
            )
        self._key = key
        self.id = hashlib.sha256(b"icestream-backup-key" + key).hexdigest()[:16]

    def cipher(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)


def load_key(source: str, environment: Mapping[str, str]) -> BackupKey:
    """The key of `file:PATH`, `env:NAME` or `command:COMMAND LINE`, as 64 hex digits or base64 of 32 bytes.

    Raises ConfigurationError; no message has any part of the key.
    """
    scheme, _, rest = source.partition(":")
    try:
        match scheme:
            case "file":
                text = read_secret_file(Path(rest)).decode("ascii")
            case "env":
                text = environment[rest]
            case "command":
                text = subprocess.run(
                    shlex.split(rest), capture_output=True, check=True, timeout=limits.BACKUP_KEY_SECONDS, text=True
                ).stdout
            case _:
                raise errors.ConfigurationError(
                    f"unknown source of the backup key: {scheme[:20]!r}", hint="file:PATH, env:NAME or command:…"
                )
    except (OSError, KeyError, ValueError, subprocess.SubprocessError) as error:
        raise errors.ConfigurationError(f"backup key cannot be read from {scheme}: {type(error).__name__}") from None
    return BackupKey(_decode_key(text.strip()))


def _decode_key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise errors.ConfigurationError(
            "the backup key is neither hex nor base64", hint="make one with `openssl rand -hex 32`"
        ) from None


def encrypt(chunks: Iterable[bytes], key: BackupKey, role: str, nonce_prefix: bytes) -> Iterator[bytes]:
    """Yields the stored bytes of an object. `nonce_prefix`: random, for this object alone."""
    cipher = key.cipher()
    yield MAGIC + _LENGTH.pack(len(key.id)) + key.id.encode() + nonce_prefix
    number = 0
    # One frame is kept back: only the end of the chunks tells which one is the last.
    pending: bytes | None = None
    for frame in _frames(chunks):
        if pending is not None:
            yield _seal(cipher, key, role, nonce_prefix, number, pending, is_last=False)
            number += 1
        pending = frame
    yield _seal(cipher, key, role, nonce_prefix, number, pending or b"", is_last=True)


def _frames(chunks: Iterable[bytes]) -> Iterator[bytes]:
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= _FRAME_BYTES:
            yield bytes(buffer[:_FRAME_BYTES])
            del buffer[:_FRAME_BYTES]
    if buffer:
        yield bytes(buffer)


def _seal(
    cipher: AESGCM, key: BackupKey, role: str, prefix: bytes, number: int, frame: bytes, *, is_last: bool
) -> bytes:
    return cipher.encrypt(prefix + _NUMBER.pack(number), frame, _associated(key.id, role, number, is_last=is_last))


def _associated(key_id: str, role: str, number: int, *, is_last: bool) -> bytes:
    texts = b"".join(_LENGTH.pack(len(text)) + text for text in (key_id.encode(), role.encode()))
    return MAGIC + texts + _FRAME.pack(number, is_last)


def decrypt(name: str, chunks: Iterable[bytes], key: BackupKey, role: str) -> Iterator[bytes]:
    """Yields the plain bytes of an object. Raises BackupDamaged, and ConfigurationError for another key."""
    from cryptography.exceptions import InvalidTag

    source = _ByteQueue(chunks)
    front = source.take(len(MAGIC) + _LENGTH.size)
    if front[: len(MAGIC)] != MAGIC or len(front) < len(MAGIC) + _LENGTH.size:
        raise errors.BackupDamaged(f"{name} is not an encrypted object")
    key_id = source.take(_LENGTH.unpack(front[len(MAGIC) :])[0]).decode("ascii", "replace")
    # Not authenticated yet: it only decides which error a wrong key gets. Every frame below proves it.
    if key_id != key.id:
        raise errors.ConfigurationError(f"{name} is encrypted with key {key_id[:40]!r}, the key given is {key.id!r}")
    prefix = source.take(NONCE_PREFIX_BYTES)
    cipher, number = key.cipher(), 0
    while True:
        # The tag covers number and `is_last`, so frames that were reordered, repeated or cut off do not authenticate.
        frame = source.take(_FRAME_BYTES + _TAG_BYTES)
        is_last = source.is_empty()
        try:
            plain = cipher.decrypt(
                prefix + _NUMBER.pack(number), frame, _associated(key_id, role, number, is_last=is_last)
            )
        except (InvalidTag, ValueError):
            raise errors.BackupDamaged(f"{name}: frame {number} cannot be authenticated") from None
        yield plain
        if is_last:
            return
        number += 1


class _ByteQueue:
    """Chunks of any size, taken in sizes of choice."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = bytearray()

    def take(self, size: int) -> bytes:
        """The next `size` bytes; fewer at the end."""
        self._fill(size)
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def is_empty(self) -> bool:
        self._fill(1)
        return not self._buffer

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            self._buffer += chunk
