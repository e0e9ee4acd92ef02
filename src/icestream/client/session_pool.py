"""SessionPool: the sessions of one client: one to the configured broker, and one to each node that it redirects to.

In a cluster a topic is served by one node; the other nodes answer with a redirect to it. All producers, subscriptions
and calls for that node share one connection. Redirects are not cached: a topic is looked up with every request.
"""

from __future__ import annotations

from icestream import errors
from icestream.client.address import Address, parse_address
from icestream.client.session import Session


class SessionPool:
    def __init__(self, first: Session) -> None:
        self._first = first
        self._redirected: dict[Address, Session] = {}
        first.follow_redirect = self.session_for

    async def session_for(self, redirect: errors.TopicElsewhere) -> Session:
        """Returns the session to the node that the redirect names.

        Raises the redirect itself if it names no address, and ConnectionLost with the node's name if that node is down:
        the client may be connected to another node all the time.
        """
        native_address = redirect.details.get("native")
        if not native_address:
            raise redirect
        address = parse_address(native_address)
        if address == self._first.address:
            raise redirect  # that node has just answered that it does not serve the topic
        session = self._redirected.get(address)
        if session is None:
            first = self._first
            node = redirect.details.get("node", f"the node at {address}")
            session = Session(address, first.options, first.clock, first.randomness, node)
            session.follow_redirect = self.session_for
            try:
                await session.start()
            except errors.ConnectionLost as lost:
                raise errors.ConnectionLost(f"{redirect.message}, and {lost.message}", hint=lost.hint) from None
            if address in self._redirected:  # another task has connected meanwhile
                await session.close()
            else:
                self._redirected[address] = session
        return self._redirected[address]

    async def close(self) -> None:
        for session in self._redirected.values():
            await session.close()
        await self._first.close()
