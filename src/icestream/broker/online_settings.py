"""Settings that change while the broker runs: keys that are marked online, stored under `/config/{key}`, watched.

    origin of a value      stored beats flag, environment and file: it was said last, and to the running broker

A stored value is JSON, as it was given (`"64MiB"` stays that). It is held to the rules of the settings tree with all
other values, before it is stored and again whenever it is read: a file that was changed in between, or a key of another
version, may contradict it. What does not fit then is left out and said in the log; it never keeps a broker from
starting.

`apply` is called with the old and the new settings, once for each change that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from icestream import errors
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.settings import KEYS, Key, Origin, Settings, change, refusal

CONFIG = "/config/"
STORED = Origin("stored")
_log = get_logger("config")


class OnlineSettings:
    def __init__(
        self,
        settings: Settings,
        origins: Mapping[str, Origin],
        store: MetadataStore,
        apply: Callable[[Settings, Settings], None],
    ) -> None:
        self.current = settings
        self.stored: dict[str, Any] = {}
        self._at_start = settings
        self._origins = origins
        self._store = store
        self._apply = apply
        self._changing = asyncio.Lock()

    def origin(self, path: str) -> Origin:
        return STORED if path in self.stored else self._origins.get(path, Origin("default"))

    async def load(self) -> int:
        """Everything that is stored counts from now on; the revision at which it was read."""
        revision = await self._store.revision()
        found = {}
        for name, entry in await self._store.list_all(CONFIG):
            path = name.removeprefix(CONFIG)
            try:
                known = online_key(path)
                found[known.path] = msgspec.json.decode(entry.value)
            except (errors.IcestreamError, msgspec.MsgspecError) as error:
                _log.warning("a stored setting is left out", key=path, reason=str(error))
        self._count(found)
        return revision

    def _count(self, stored: dict[str, Any]) -> None:
        settings, problems = change(self._at_start, stored)
        if settings is None:
            _log.warning("stored settings are left out", reason=str(refusal(problems)))
            settings, stored = _those_that_fit(self._at_start, stored)
        old, self.current, self.stored = self.current, settings, stored
        if old != settings:
            self._apply(old, settings)

    async def follow(self, revision: int) -> None:
        """Whoever changes it, here or on another node: it counts here. Without end."""
        async for _ in self._store.watch(CONFIG, revision):
            await self.load()

    async def set(self, path: str, value: Any) -> None:
        """Durable and in force when this returns. Raises ConfigurationError with everything that is wrong."""
        key = online_key(path)
        async with self._changing:
            self._check({**self.stored, key.path: value})
            await self._store.put(CONFIG + key.path, msgspec.json.encode(value))
            await self.load()

    async def unset(self, path: str) -> None:
        """What the file, the environment or a flag say counts again."""
        key = online_key(path)
        async with self._changing:
            self._check({name: value for name, value in self.stored.items() if name != key.path})
            await self._store.delete(CONFIG + key.path)
            await self.load()

    def _check(self, stored: dict[str, Any]) -> None:
        settings, problems = change(self._at_start, stored)
        if settings is None:
            raise refusal(problems)


def online_key(path: str) -> Key:
    """A key that may change without a restart. Raises UnknownSetting, or ConfigurationError for one that may not."""
    key = setting(path)
    if not key.online:
        raise errors.ConfigurationError(
            f"{path} cannot change while the broker runs", hint="set it in the file, the environment or a flag; restart"
        )
    return key


def setting(path: str) -> Key:
    key = KEYS.get(path)
    if key is None:
        raise errors.UnknownSetting(f"there is no setting {path[:100]!r}", hint=f"the nearest is {KEYS.nearest(path)}")
    return key


def _those_that_fit(settings: Settings, stored: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """One after the other, each with those before it."""
    kept: dict[str, Any] = {}
    found = settings
    for path, value in stored.items():
        changed, _ = change(settings, {**kept, path: value})
        if changed is not None:
            kept[path], found = value, changed
    return found, kept
