"""A producer or a subscription, as the session of its client sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from icestream import errors
from icestream.client.connection import Connection

if TYPE_CHECKING:
    from icestream.client.session import Session


class Endpoint(Protocol):
    """A producer or a subscription: it lives longer than a connection."""

    async def open_on(self, connection: Connection) -> None:
        """Makes itself known on a connection. Raises what the broker says against it."""

    def move_to(self, session: Session) -> None:
        """Another node serves its topic. It was not open yet."""

    def flush_on(self, connection: Connection | None) -> None:
        """The end of a tick: pushes what is to be sent. None: not connected."""

    def detach(self, error: errors.IcestreamError) -> None:
        """The connection is lost; `open_on` comes with the next one."""

    def fail(self, error: errors.IcestreamError) -> None:
        """It will never be open again."""

    async def close(self) -> None: ...
