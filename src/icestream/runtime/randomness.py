"""Chance, as a thing that is handed in, so that a whole run follows from one seed."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Randomness(Protocol):
    def token(self, size: int) -> bytes:
        """`size` random bytes, unique in practice."""


class SystemRandomness:
    def token(self, size: int) -> bytes:
        return secrets.token_bytes(size)


class SeededRandomness:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)
