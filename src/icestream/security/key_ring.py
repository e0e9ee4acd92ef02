"""The signing keys of the cluster, and how they are stored: wrapped, so that no copy of the store has one in clear.

    ring      a list of keys, the newest first. The newest signs; every key of the ring verifies
    rotation  adds a key. An older one stays until the last token that it signed has expired, then a rotation drops it
    leak      `without` takes a key out at once: every token that it signed is invalid

    stored    version (1 byte, 1) | nonce (12) | AES-256-GCM of the JSON document, with the version as associated data
    document  {"keys": [{"key_id", "seed" (32 bytes, base64), "created_us"}, …]}

The wrapping key is the file `security/wrapping.key` of the data directory: 32 random bytes in base64, mode 0600. The
nodes of a cluster share it as they share their authority. A snapshot, an export or a backup of the metadata store has
the wrapped bytes only (hazard 119); a restore elsewhere without the file needs new keys.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from icestream import errors, limits
from icestream.observability.log import get_logger
from icestream.runtime.randomness import Randomness
from icestream.runtime.secret_file import create_secret_file, read_secret_file

_log = get_logger("security")
ALGORITHM: Final = "EdDSA"
_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_WRAPPING_KEY_FILE: Final = Path("security") / "wrapping.key"


class SigningKey(msgspec.Struct, frozen=True):
    """An Ed25519 key. `seed` is the private part."""

    key_id: str
    seed: bytes
    created_us: int

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id})"

    @classmethod
    def new(cls, randomness: Randomness, now_us: int) -> SigningKey:
        return cls(randomness.token(8).hex(), randomness.token(_KEY_BYTES), now_us)


class _RingDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[SigningKey]


@dataclass(frozen=True, slots=True)
class WrappingKey:
    """Wraps and unwraps key rings."""

    key: bytes = field(repr=False)

    def wrap(self, plain: bytes, randomness: Randomness) -> bytes:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = randomness.token(_NONCE_BYTES)
        return _VERSION + nonce + AESGCM(self.key).encrypt(nonce, plain, _VERSION)

    def unwrap(self, wrapped: bytes) -> bytes:
        """Raises MetadataDamaged if the bytes were changed, or wrapped by another key."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce, ciphertext = wrapped[1 : 1 + _NONCE_BYTES], wrapped[1 + _NONCE_BYTES :]
        try:
            if wrapped[:1] == _VERSION:
                return AESGCM(self.key).decrypt(nonce, ciphertext, _VERSION)
        except (InvalidTag, ValueError):
            pass
        raise errors.MetadataDamaged(
            "the signing keys cannot be unwrapped: they were wrapped by another key, or damaged",
            hint=f"copy {_WRAPPING_KEY_FILE} of the data directory from a node of the cluster; if it is lost, "
            "`icestream security recover` makes new signing keys, and every token ends",
        )


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Signing keys, the newest first. Immutable: changes return a new ring."""

    keys: tuple[SigningKey, ...] = ()

    @classmethod
    def new(cls, randomness: Randomness, now_us: int) -> KeyRing:
        """A ring with one key."""
        return cls((SigningKey.new(randomness, now_us),))

    @property
    def newest(self) -> SigningKey:
        """The key that signs. Raises ConfigurationError if the ring is empty."""
        if not self.keys:
            raise errors.ConfigurationError(
                "there is no signing key", hint="`icestream security init` makes the first one"
            )
        return self.keys[0]

    def find(self, key_id: str) -> SigningKey | None:
        return next((key for key in self.keys if key.key_id == key_id), None)

    def rotated(self, randomness: Randomness, now_us: int) -> KeyRing:
        """The ring with a new key that signs from now on, without the keys whose last token has expired.

        Raises Refused if the ring is full: keys that may still have valid tokens are not dropped.
        """
        # A key signed its last token at the latest when the next one came.
        ends = [now_us, *(key.created_us for key in self.keys)]
        earlier_keys = tuple(
            key
            for key, replaced_us in zip(self.keys, ends, strict=False)
            if replaced_us + limits.SECURITY_TOKEN_SECONDS_MAX * 1_000_000 > now_us
        )
        if len(earlier_keys) >= limits.SIGNING_KEYS_MAX:
            raise errors.Refused(
                f"the key ring has {len(earlier_keys)} keys whose tokens may still be valid",
                hint="`icestream security tokens remove-key ID` removes one; its tokens end",
            )
        return KeyRing((SigningKey.new(randomness, now_us), *earlier_keys))

    def without(self, key_id: str) -> KeyRing:
        """The ring without a key, whose tokens are invalid from then on. The last key stays: rotate first."""
        if self.find(key_id) is None:
            raise errors.InvalidInput(
                f"there is no signing key {key_id[:100]!r}", hint="`icestream security tokens keys` lists them"
            )
        if len(self.keys) == 1:
            raise errors.InvalidInput(
                "the last signing key cannot be removed",
                hint="`icestream security tokens rotate-keys` adds one; then remove it",
            )
        return KeyRing(tuple(key for key in self.keys if key.key_id != key_id))

    def encode(self, wrapping_key: WrappingKey, randomness: Randomness) -> bytes:
        return wrapping_key.wrap(msgspec.json.encode(_RingDocument(list(self.keys))), randomness)

    @classmethod
    def decode(cls, wrapped: bytes, wrapping_key: WrappingKey) -> KeyRing:
        """Raises MetadataDamaged."""
        try:
            document = msgspec.json.decode(wrapping_key.unwrap(wrapped), type=_RingDocument)
        except (msgspec.DecodeError, ValueError) as error:
            raise errors.MetadataDamaged(f"the signing keys are not a key ring: {error}") from None
        return cls(tuple(document.keys))


class KeyRingReader:
    """The present ring of a node, unwrapped once for each change of the stored bytes."""

    def __init__(self, wrapped: Callable[[], bytes], wrapping_key: Callable[[], WrappingKey | None]) -> None:
        """`wrapped`: the stored bytes, empty before there are any. `wrapping_key` is read for each change of them, and
        again while they cannot be unwrapped: the file may be copied to this node later, or replaced by a recovery."""
        self._wrapped = wrapped
        self._read_wrapping_key = wrapping_key
        self._unwrapped: tuple[bytes, KeyRing] = (b"", KeyRing())
        self._unreadable = b""  # the bytes of which was logged that they cannot be unwrapped

    def __call__(self) -> KeyRing:
        """The ring; an empty one before there are keys, and on a node that cannot unwrap them, which is logged."""
        wrapped = self._wrapped()
        if wrapped != self._unwrapped[0]:
            ring = self._unwrap(wrapped)
            if ring is None:
                return KeyRing()
            self._unwrapped = (wrapped, ring)
        return self._unwrapped[1]

    def _unwrap(self, wrapped: bytes) -> KeyRing | None:
        """The ring; None if this node cannot unwrap it now."""
        try:
            wrapping_key = self._read_wrapping_key()
            if wrapping_key is not None:
                return KeyRing.decode(wrapped, wrapping_key)
            reason = f"the data directory has no {_WRAPPING_KEY_FILE}"
        except (errors.MetadataDamaged, errors.ConfigurationError) as error:
            reason = str(error)
        if wrapped != self._unreadable:
            self._unreadable = wrapped
            _log.error("no token of this cluster can be verified: the signing keys cannot be read", reason=reason)
        return None


def read_wrapping_key(data_dir: Path) -> WrappingKey | None:
    """The wrapping key of a node; None if it has none. Raises ConfigurationError if the file is not one."""
    path = data_dir / _WRAPPING_KEY_FILE
    if not path.exists():
        return None
    try:
        key = base64.b64decode(read_secret_file(path), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise errors.ConfigurationError(
            f"{path} is not a wrapping key", hint="copy it from another node of the cluster, or from a backup of it"
        )
    return WrappingKey(key)


def create_wrapping_key(data_dir: Path, randomness: Randomness) -> WrappingKey:
    """The wrapping key of a node, which is created if it has none. Durable when this returns."""
    existing = read_wrapping_key(data_dir)
    if existing is not None:
        return existing
    key = randomness.token(_KEY_BYTES)
    path = data_dir / _WRAPPING_KEY_FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    create_secret_file(path, base64.b64encode(key) + b"\n")
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return WrappingKey(key)
