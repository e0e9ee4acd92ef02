"""Who is at work on what, in this process: changes of one table or namespace take turns.

Nothing depends on it but speed: two nodes are told apart by the comparisons of their transactions. Without it every
second commit to a busy table would write its metadata file in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence


class KeyLocks:
    def __init__(self) -> None:
        self.locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of those who want it

    def of(self, keys: Iterable[str]) -> KeyLockScope:
        """All of them, always in the same order, so that nobody waits in a circle."""
        return KeyLockScope(self, sorted(set(keys)))

    def __len__(self) -> int:
        return len(self.locks)


class KeyLockScope:
    """Written out: every commit has one, and a context manager made of generators costs four times as much."""

    __slots__ = ("_held", "_keys", "_turns")

    def __init__(self, turns: KeyLocks, keys: Sequence[str]) -> None:
        self._turns = turns
        self._keys = keys
        self._held: list[asyncio.Lock] = []

    async def __aenter__(self) -> None:
        locks = self._turns.locks
        for key in self._keys:
            lock, count = locks.get(key) or (asyncio.Lock(), 0)
            locks[key] = lock, count + 1
        try:
            for key in self._keys:
                lock = locks[key][0]
                await lock.acquire()
                self._held.append(lock)
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        for lock in self._held:
            lock.release()
        locks = self._turns.locks
        for key in self._keys:
            lock, count = locks.pop(key)
            if count > 1:
                locks[key] = lock, count - 1
