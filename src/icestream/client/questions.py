"""Calls and pings of one connection that wait for their answers. Bounded; what answers nothing is an error."""

from __future__ import annotations

import asyncio
from typing import Any

from icestream import errors, limits
from icestream.rpc import document
from icestream.rpc.frame import Frame, Kind

Document = dict[str, Any]


class Questions:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[Document]] = {}

    def ask(self, number: int) -> asyncio.Future[Document]:
        """A future for the answer. Raises InFlightFull."""
        if len(self._answers) >= limits.CLIENT_CALLS_MAX:
            raise errors.InFlightFull(f"{len(self._answers)} calls wait for an answer", hint="make fewer at once")
        answer = self._answers[number] = self._loop.create_future()
        return answer

    def answered(self, one: Frame) -> None:
        """Raises the broker's last word about the connection, or DecodeError for what answers nothing."""
        if one.kind == Kind.ERROR and not one.number:
            raise document.decode_error(one.body)
        answer = self._answers.pop(one.number, None)
        if answer is None:
            raise errors.DecodeError(f"a frame of kind {one.kind} answers {one.number}, which was not asked")
        if answer.done():
            return  # whoever asked has gone
        if one.kind == Kind.ERROR:
            answer.set_exception(document.decode_error(one.body))
        else:
            answer.set_result({} if one.kind == Kind.PONG else document.decode(one.body))

    def fail(self, error: errors.IcestreamError) -> None:
        """There will be no answers."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever asked may have gone
