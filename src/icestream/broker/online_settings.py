"""Settings that can change while the broker runs: keys marked `online`, stored under `/config/{key}` and watched.

A stored value takes precedence over flags, environment and file, because it was set last, on the running broker.

A stored value is JSON in the form in which it was set (`"64MiB"` stays that). It is validated together with all other
settings, before it is stored and again whenever it is read: a file that was changed in between, or a key of another
version, may contradict it. An invalid stored value is ignored and logged; it never keeps a broker from starting.

`apply` is called with the old and the new settings, once for each effective change.
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
    """The effective settings of a running broker: those of its start, with the stored ones over them."""

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
        """Where the effective value of a setting comes from."""
        return STORED if path in self.stored else self._origins.get(path, Origin("default"))

    async def load(self) -> int:
        """Applies all stored settings; returns the store revision at which they were read."""
        # The revision first: a change between it and the list is read twice, one after the list is seen by `follow`.
        revision = await self._store.revision()
        stored = {}
        for name, entry in await self._store.list_all(CONFIG):
            path = name.removeprefix(CONFIG)
            try:
                key = online_key(path)
                stored[key.path] = msgspec.json.decode(entry.value)
            except (errors.IcestreamError, msgspec.MsgspecError) as error:
                _log.warning("ignored an invalid stored setting", key=path, reason=str(error))
        self._apply_stored(stored)
        return revision

    def _apply_stored(self, stored: dict[str, Any]) -> None:
        """Applies stored values over the settings of the start, and leaves out those that are invalid."""
        settings, problems = change(self._at_start, stored)
        if settings is None:
            _log.warning("ignored invalid stored settings", reason=str(refusal(problems)))
            settings, stored = _valid_subset(self._at_start, stored)
        old, self.current, self.stored = self.current, settings, stored
        if old != settings:
            self._apply(old, settings)

    async def follow(self, revision: int) -> None:
        """Applies every change of a stored setting, by this or another node, until cancelled."""
        # All of them are loaded again, whatever has changed: a value is valid or not together with the others.
        async for _ in self._store.watch(CONFIG, revision):
            await self.load()

    async def set(self, path: str, value: Any) -> None:
        """Stores and applies a value. Raises ConfigurationError with all problems, UnknownSetting."""
        key = online_key(path)
        async with self._changing:  # two changes at once could be valid each and contradict each other
            self._check({**self.stored, key.path: value})
            await self._store.put(CONFIG + key.path, msgspec.json.encode(value))
            await self.load()

    async def unset(self, path: str) -> None:
        """Deletes a stored value: the one of the file, the environment or a flag applies again."""
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
    """The key of a setting that can change without a restart. Raises UnknownSetting, ConfigurationError."""
    key = setting(path)
    if not key.online:
        raise errors.ConfigurationError(
            f"{path} cannot change while the broker runs",
            hint="set it in the file, the environment or a flag, and restart",
        )
    return key


def setting(path: str) -> Key:
    """The key of a setting. Raises UnknownSetting with the nearest name."""
    key = KEYS.get(path)
    if key is None:
        raise errors.UnknownSetting(f"there is no setting {path[:100]!r}", hint=f"the nearest is {KEYS.nearest(path)}")
    return key


def _valid_subset(settings: Settings, stored: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """Adds the stored values one by one, each if it is valid together with those before it."""
    accepted: dict[str, Any] = {}
    result = settings
    for path, value in stored.items():
        changed, _ = change(settings, {**accepted, path: value})
        if changed is not None:
            accepted[path], result = value, changed
    return result, accepted
