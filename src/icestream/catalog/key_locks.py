"""In-process locks by key: changes of one table or namespace run one after the other within this process.

They are an optimisation. Correctness across processes and nodes comes from the comparisons of each transaction; without
the locks every second commit to a busy table would write its metadata file in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence


class KeyLocks:
    def __init__(self) -> None:
        self.locks: dict[str, tuple[asyncio.Lock, int]] = {}  # with the number of holders and waiters

    def lock(self, keys: Iterable[str]) -> KeyLockScope:
        """An async context manager that holds the locks of all keys."""
        # Sorted: two scopes always acquire shared keys in the same order, so they cannot deadlock.
        return KeyLockScope(self, sorted(set(keys)))

    def __len__(self) -> int:
        return len(self.locks)


class KeyLockScope:
    """A class and not a generator: every commit enters one, and `asynccontextmanager` costs four times as much."""

    __slots__ = ("_acquired", "_keys", "_owner")

    def __init__(self, owner: KeyLocks, keys: Sequence[str]) -> None:
        self._owner = owner
        self._keys = keys
        self._acquired: list[asyncio.Lock] = []

    async def __aenter__(self) -> None:
        locks = self._owner.locks
        for key in self._keys:
            lock, count = locks.get(key) or (asyncio.Lock(), 0)
            locks[key] = lock, count + 1
        try:
            for key in self._keys:
                lock = locks[key][0]
                await lock.acquire()
                self._acquired.append(lock)
        except BaseException:  # cancelled while it waited
            self._release()
            raise

    async def __aexit__(self, *_error: object) -> None:
        self._release()

    def _release(self) -> None:
        for lock in self._acquired:
            lock.release()
        locks = self._owner.locks
        for key in self._keys:
            lock, count = locks.pop(key)
            if count > 1:
                locks[key] = lock, count - 1
