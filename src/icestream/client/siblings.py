"""The sessions of one client: the one to the broker that it was told, and one to each other node that it was sent to.

In a cluster a topic is served by one node; the others answer with its address. A producer, a subscription or a call
goes there, over one connection for all of that node. Nothing is remembered of topics: who asks for one is told again.
"""

from __future__ import annotations

from icestream import errors
from icestream.client.address import Address, parse_address
from icestream.client.session import Session


class Siblings:
    def __init__(self, first: Session) -> None:
        self._first = first
        self._others: dict[Address, Session] = {}
        first.elsewhere = self.at

    async def at(self, error: errors.TopicElsewhere) -> Session:
        """The session to the node that the error names. Raises the error when it names none, and ConnectionLost with
        the name of that node when it is down: this client may be connected to a node that is not."""
        place = error.details.get("native")
        if not place:
            raise error
        address = parse_address(place)
        if address == self._first.address:
            raise error  # it has just said that it is not the one
        session = self._others.get(address)
        if session is None:
            first = self._first
            node = error.details.get("node", f"the node at {address}")
            session = Session(address, first.options, first.clock, first.randomness, node)
            session.elsewhere = self.at
            try:
                await session.start()
            except errors.ConnectionLost as lost:
                raise errors.ConnectionLost(f"{error.message}, and {lost.message}", hint=lost.hint) from None
            if address in self._others:  # somebody else was quicker
                await session.close()
            else:
                self._others[address] = session
        return self._others[address]

    async def close(self) -> None:
        for session in self._others.values():
            await session.close()
        await self._first.close()
