"""A broker of one's own for tests: alone, on a free port, gone afterwards.

    async with icestream.testing.broker() as broker:          in the loop of the test
        async with icestream.connect(broker.address) as client: ...

    with icestream.testing.broker() as broker:                in a thread of its own, for code that blocks
        with icestream.connect_sync(broker.address) as client: ...

It keeps its messages in memory, or with `storage="disk"` in a directory that is removed at the end. `stop()` and
`start()`, or `restart()`, stop it in order and start it again under the same address; what was on disk is there again.
In a thread of its own: `stop_sync()`, `start_sync()`, `restart_sync()`.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

from pydantic import ValidationError

from icestream import errors
from icestream.client.loop_thread import LoopThread
from icestream.processes.broker_process import BrokerNode
from icestream.settings import Settings
from icestream.settings.tree import PortsSection

# Small files, none of them zeroed in the background: a start takes milliseconds.
_SMALL_LOG: Final = {"max_file_size": "16MiB", "spare_files": 0, "ballast": 0}


class TestBroker:
    """A broker of one's own, on a free port of this machine. `broker` makes one; `async with` or `with` starts it."""

    __test__ = False  # for pytest: not a test

    def __init__(self, storage: Literal["memory", "disk"], settings: Mapping[str, Any]) -> None:
        self._storage = storage
        self._given = settings
        self._folder: Path | None = None
        self._node: BrokerNode | None = None
        self._thread: LoopThread | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Where it listens: for `icestream.connect`."""
        if not self._port:
            raise errors.ClientClosed("the broker is not running", hint="use it inside `with` or `async with`")
        return f"icestream://127.0.0.1:{self._port}"

    @property
    def node(self) -> BrokerNode:
        """The broker itself, for a look inside. It belongs to the loop that it runs on."""
        if self._node is None:
            raise errors.ClientClosed("the broker is not running")
        return self._node

    # --- in the event loop of the caller ---

    async def start(self) -> None:
        """Starts it, under the address that it had before."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="icestream-"))
        self._node = await BrokerNode.start(self._settings(self._folder))
        self._port = self._node.native.port

    async def stop(self) -> None:
        """Stops it in order; `start` starts it again under the same address."""
        node, self._node = self._node, None
        if node is not None:
            await node.stop()

    async def restart(self) -> None:
        """Stops it in order and starts it again under the same address."""
        await self.stop()
        await self.start()

    def _settings(self, folder: Path) -> Settings:
        tree: dict[str, Any] = {
            "data_dir": str(folder),
            "ports": {**dict.fromkeys(PortsSection.model_fields, 0), "native": self._port},
            "lake": {"managed": False},
            "pipeline": {"managed": False},
            "broker": {"deleted_rest": "discard"},  # no pipeline commits it here
            "danube": {"enable": False},
            "mqtt": {"enable": False},
            "storage": {
                "type": "memory" if self._storage == "memory" else "iceberg",
                "iceberg_config": {"wal": dict(_SMALL_LOG)},
            },
        }
        try:
            return Settings.model_validate(_merged(tree, self._given))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors())
            raise errors.ConfigurationError(
                f"a broker cannot start with these settings: {wrong}", hint="docs/config.md lists all keys"
            ) from None

    async def __aenter__(self) -> TestBroker:
        try:
            await self.start()
        except BaseException:
            self._remove()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            self._remove()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._port = None, 0

    # --- in a thread of its own ---

    def __enter__(self) -> TestBroker:
        self._thread = LoopThread()
        try:
            self._thread.run(self.__aenter__())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            with contextlib.closing(thread):
                thread.run(self.__aexit__(None, None, None))

    def start_sync(self) -> None:
        """`start` of a broker in a thread of its own, after `stop_sync`."""
        self._here().run(self.start())

    def stop_sync(self) -> None:
        """`stop` of a broker in a thread of its own."""
        self._here().run(self.stop())

    def restart_sync(self) -> None:
        """`restart` of a broker in a thread of its own."""
        self._here().run(self.restart())

    def _here(self) -> LoopThread:
        if self._thread is None:
            raise errors.ClientClosed("the broker does not run in a thread", hint="use it inside `with`")
        return self._thread


def broker(storage: Literal["memory", "disk"] = "memory", settings: Mapping[str, Any] | None = None) -> TestBroker:
    """A broker for tests. `settings`: keys of the settings tree over those that it starts with."""
    if storage not in ("memory", "disk"):
        raise errors.InvalidInput(f"there is no storage {storage!r}", hint='it is "memory" or "disk"')
    return TestBroker(storage, settings or {})


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        nested = merged.get(key)
        is_section = isinstance(nested, dict) and isinstance(value, Mapping)
        merged[key] = _merged(nested or {}, value) if is_section else value
    return merged
