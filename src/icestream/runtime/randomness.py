"""Randomness behind a protocol, so that a whole simulated run follows from one seed."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Randomness(Protocol):
    """A source of random bytes."""

    def token(self, size: int) -> bytes:
        """`size` random bytes, unique in practice."""


class SystemRandomness:
    """The random source of the system."""

    def token(self, size: int) -> bytes:
        return secrets.token_bytes(size)


class SeededRandomness:
    """Repeatable bytes for simulations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)
