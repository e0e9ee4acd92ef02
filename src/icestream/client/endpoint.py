"""What a client and its producers and subscriptions know of each other."""

from __future__ import annotations

from typing import Protocol

from icestream import errors
from icestream.client.connection import Connection, Document
from icestream.client.options import ClientOptions
from icestream.runtime.clock import Clock
from icestream.runtime.randomness import Randomness
from icestream.runtime.tasks import Tasks


class Endpoint(Protocol):
    """A producer or a subscription: it lives longer than a connection."""

    async def open_on(self, connection: Connection) -> None:
        """Makes itself known on a connection. Raises what the broker says against it."""

    def flush_on(self, connection: Connection | None) -> None:
        """The end of a tick: pushes what is to be sent. None: not connected."""

    def detach(self, error: errors.IcestreamError) -> None:
        """The connection is lost; `open_on` comes with the next one."""

    def fail(self, error: errors.IcestreamError) -> None:
        """It will never be open again."""

    async def close(self) -> None: ...


class Session(Protocol):
    """The client, as its endpoints see it."""

    options: ClientOptions
    clock: Clock
    randomness: Randomness
    tasks: Tasks

    def plan(self, endpoint: Endpoint) -> None:
        """Calls its `flush_on` at the end of this tick, once."""

    async def call(self, method: str, arguments: Document, *, repeats: bool = False) -> Document:
        """Waits for a connection. One that is lost under the call is ConnectionLost, unless it `repeats`."""

    async def ask(self, connection: Connection, method: str, arguments: Document, *, undo: str = "") -> Document:
        """A call on this very connection. Raises ConnectionLost when it is lost, or there is no answer in time.

        `undo`: the call that takes it back, with the handle of an answer that comes when nobody waits any more.
        """

    async def tell(self, connection: Connection, method: str, arguments: Document) -> None:
        """The same, where it does not matter what comes of it."""

    async def open(self, endpoint: Endpoint) -> None:
        """For the first time. Raises."""

    async def open_again(self, endpoint: Endpoint, connection: Connection) -> None:
        """As often as it takes, while the connection lives. Fails the endpoint when there is no hope."""

    def forget(self, endpoint: Endpoint) -> None: ...
