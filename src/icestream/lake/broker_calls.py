"""Calls from the routes of the API to the broker, over its local socket.

Every call is made on behalf of the caller of the request, whose rights decide in the broker (hazard 108). A route gets
its BrokerLink for the caller that `identify_caller` found: without one there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Query, Request

from icestream import limits
from icestream.admin_api.admin_call import AdminCall, NoArguments, PageRequest
from icestream.lake.request_caller import (
    RequestCaller,
    RequestCallers,
    check_tokens,
    client_address,
    client_certificate,
    mark_authenticated,
)
from icestream.rpc.link_keeper import LinkKeeper

PREFIX = "/api/v1"  # of every route
LISTENER: Final = "lake"
RequestT = TypeVar("RequestT", bound=msgspec.Struct)
AnswerT = TypeVar("AnswerT")


class BrokerLink:
    """The connection to the broker as a function: `await broker(INSPECT_TOPIC, TopicOnly(…))`."""

    def __init__(self, keeper: LinkKeeper, caller: RequestCaller) -> None:
        self._keeper = keeper
        self._caller = caller

    async def __call__(self, call: AdminCall[RequestT, AnswerT], request: RequestT | None = None) -> AnswerT:
        """The answer of a declared call; `request` is None for a call without arguments.

        Raises the broker's error, or ConnectionLost while the broker is not connected.
        """
        arguments: dict[str, Any] = msgspec.to_builtins(NoArguments() if request is None else request)
        return msgspec.convert(await self._caller.call(self._keeper, call.name, arguments), call.answer)

    async def reopen_offsets(self, positions: list[list[int]]) -> dict[int, int]:
        """Lowers the floors of shards to these positions, as far as the log has the messages. A call of this process
        itself: the route has asked for the rights of the operation that it is a part of.

        `positions`: topic id, shard and offset. Returns the floors by shard.
        """
        reply = await self._keeper.call("pipeline_reopen", {"positions": positions})
        return {shard: floor for _, shard, floor in reply["floors"]}

    @property
    def is_here(self) -> bool:
        return self._keeper.is_connected


async def identify_caller(request: Request) -> AsyncIterator[RequestCaller]:
    """The caller of a request, which every route depends on. Raises Unauthenticated."""
    callers: RequestCallers = request.app.state.callers
    authorization = request.headers.getlist("authorization")
    scope = request.scope
    caller = await callers.identify(authorization, client_address(scope), LISTENER, client_certificate(scope))
    try:
        check_tokens(request.app.state.tokens, caller, authorization)
        mark_authenticated(scope, caller)
        yield caller
    finally:
        callers.release(caller)


CallerDep = Annotated[RequestCaller, Depends(identify_caller)]


def get_broker(request: Request, caller: CallerDep) -> BrokerLink:
    return BrokerLink(request.app.state.keeper, caller)


def page_query(
    after: Annotated[str, Query(max_length=2 * limits.TOPIC_NAME_BYTES_MAX, description="Start after this item.")] = "",
    limit: Annotated[
        int, Query(ge=1, le=limits.API_PAGE_MAX, description="Maximum number of items on the page.")
    ] = limits.API_PAGE_DEFAULT,
) -> PageRequest:
    return PageRequest(after=after, limit=limit)


BrokerDep = Annotated[BrokerLink, Depends(get_broker)]
PageDep = Annotated[PageRequest, Depends(page_query)]
