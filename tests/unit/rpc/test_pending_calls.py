"""PendingCalls: replies reach their calls; replies without a call and errors of the connection are reported."""

from __future__ import annotations

import pytest

from icestream import errors
from icestream.rpc import document
from icestream.rpc.document import Document
from icestream.rpc.frame import Frame, FrameKind
from icestream.rpc.pending_calls import PendingCalls


def result(number: int, reply: Document) -> Frame:
    return Frame(FrameKind.RESULT, 0, number, document.encode(reply))


@pytest.mark.asyncio
async def test_a_reply_resolves_its_call_after_on_reply_ran() -> None:
    calls = PendingCalls()
    replies: list[tuple[Document, bool]] = []
    future = calls.add(7, lambda reply: replies.append((reply, future.done())))
    assert calls.resolve(result(7, {"handle": 1}))
    assert await future == {"handle": 1}
    assert replies == [({"handle": 1}, False)]


@pytest.mark.asyncio
async def test_a_reply_without_a_call_is_reported() -> None:
    calls = PendingCalls()
    calls.add(1)
    calls.discard(1)
    assert not calls.resolve(result(1, {}))


@pytest.mark.asyncio
async def test_an_error_with_number_0_is_raised_for_the_connection() -> None:
    calls = PendingCalls()
    future = calls.add(1)
    with pytest.raises(errors.NotReady, match="later"):
        calls.resolve(Frame(FrameKind.ERROR, 0, 0, document.encode_error(errors.NotReady("later"))))
    assert not future.done()


@pytest.mark.asyncio
async def test_more_calls_than_allowed_are_refused_and_fail_ends_all() -> None:
    calls = PendingCalls(calls_max=2)
    futures = [calls.add(1), calls.add(2)]
    with pytest.raises(errors.InFlightFull):
        calls.add(3)
    calls.fail(errors.ConnectionLost("gone"))
    for future in futures:
        with pytest.raises(errors.ConnectionLost, match="gone"):
            await future
    assert not calls.resolve(result(1, {}))
