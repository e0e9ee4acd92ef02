"""Changes of the stored ring of signing keys, wrapped before and after. Reads the wrapping key of this node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from icestream import errors
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.security.key_ring import KeyRing, SigningKey, WrappingKey, create_wrapping_key, read_wrapping_key


class KeyRingChanges:
    """`data_dir`: the data directory of this node, which has the wrapping key."""

    def __init__(self, data_dir: Path, clock: Clock, randomness: Randomness) -> None:
        self._data_dir = data_dir
        self._clock = clock
        self._randomness = randomness

    def new_ring(self) -> bytes:
        """A ring with one new key. Creates the wrapping key if the node has none; waits for the disk."""
        wrapping_key = create_wrapping_key(self._data_dir, self._randomness)
        return KeyRing.new(self._randomness, self._clock.wall_us()).encode(wrapping_key, self._randomness)

    def rotated(self, wrapped: bytes) -> bytes:
        """The ring with a new key that signs from then on. Raises ConfigurationError, MetadataDamaged, Refused."""
        wrapping_key = self._wrapping_key()
        ring = KeyRing.decode(wrapped, wrapping_key).rotated(self._randomness, self._clock.wall_us())
        return ring.encode(wrapping_key, self._randomness)

    def without(self, wrapped: bytes, key_id: str) -> bytes:
        """The ring without a key, whose tokens end. Raises ConfigurationError, MetadataDamaged, InvalidInput."""
        wrapping_key = self._wrapping_key()
        return KeyRing.decode(wrapped, wrapping_key).without(key_id).encode(wrapping_key, self._randomness)

    def is_readable(self, wrapped: bytes) -> bool:
        """Whether this node can sign and verify with the ring."""
        try:
            KeyRing.decode(wrapped, self._wrapping_key())
        except (errors.ConfigurationError, errors.MetadataDamaged):
            return False
        return True

    def keys(self, wrapped: bytes) -> Sequence[SigningKey]:
        """The keys, the signing one first."""
        return KeyRing.decode(wrapped, self._wrapping_key()).keys

    def _wrapping_key(self) -> WrappingKey:
        wrapping_key = read_wrapping_key(self._data_dir)
        if wrapping_key is None:
            raise errors.ConfigurationError(
                "this node has no wrapping key, so it cannot use the signing keys",
                hint="copy security/wrapping.key of the data directory from the node of `security init`, mode 0600",
            )
        return wrapping_key
