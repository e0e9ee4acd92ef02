"""Questions of the broker to its lake process about tables (model/scan.py, docs/adr/0027).

The lake process is a client of the broker: it comes to the desk and is told questions, and brings their answers in
parts. The broker never waits for a socket of its own here, and knows no tables.

    nobody here    a question waits SCAN_AWAY_SECONDS_MAX, then LakeAway: whoever reads tries again later, at the same
                   position, and says so
    somebody       SCANS_IN_FLIGHT_MAX questions at a time are his; others wait their turn
    he leaves      questions without an answer are the next one's: they change nothing, so they may be asked twice
    too late       after SCAN_SECONDS_MAX it is LakeAway too, and he is told that nobody wants the answer any more
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from icestream import errors, limits
from icestream.model.scan import Asked, Question, Scanned
from icestream.model.shard import ShardKey
from icestream.observability import metrics

Tell = Callable[[dict[str, Any]], None]
_answers = msgspec.msgpack.Decoder(Scanned)


class _Open:
    """A question without an answer."""

    __slots__ = ("answer", "asked", "parts", "size")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.answer: asyncio.Future[Scanned] = asyncio.get_running_loop().create_future()
        self.parts: list[bytes] = []
        self.size = 0


class ScanRequests:
    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._number = 0
        self._turns = asyncio.Semaphore(limits.SCANS_IN_FLIGHT_MAX)
        self._tell: Tell | None = None
        self._here = asyncio.Event()
        self.was_attended = False  # in this life of the broker

    @property
    def is_attended(self) -> bool:
        return self._tell is not None

    # --- asking ---

    async def ask(self, question: Question, topic: str, key: ShardKey, value: int = 0, bytes_max: int = 0) -> Scanned:
        """Raises LakeAway, TableUnreadable, or what kept the lake process from answering."""
        async with self._turns:
            try:
                async with asyncio.timeout(limits.SCAN_AWAY_SECONDS_MAX):
                    await self._here.wait()
            except TimeoutError:
                raise _away("the lake process is away") from None
            self._number += 1
            asked = Asked(self._number, question, topic, key.topic_id, key.shard, value, bytes_max)
            return await self._ask(asked)

    async def _ask(self, asked: Asked) -> Scanned:
        found = self._open[asked.number] = _Open(asked)
        try:
            self._say(found)
            async with asyncio.timeout(limits.SCAN_SECONDS_MAX):
                return await found.answer
        except TimeoutError:
            raise _away(f"the lake process did not answer within {limits.SCAN_SECONDS_MAX:g} s") from None
        finally:
            del self._open[asked.number]
            if (not found.answer.done() or found.answer.cancelled()) and self._tell is not None:
                self._tell({"event": "dropped", "number": asked.number})

    def _say(self, found: _Open) -> None:
        found.parts, found.size = [], 0
        if self._tell is not None:
            self._tell({"event": "asked", "asked": msgspec.to_builtins(found.asked)})

    # --- the lake process ---

    def attend(self, tell: Tell) -> None:
        """From now on he is told the questions, those without an answer first. Who came before him is gone."""
        self._tell = tell
        self.was_attended = True
        self._here.set()
        for found in list(self._open.values()):
            self._say(found)

    def leave(self, tell: Tell) -> None:
        if self._tell is tell:
            self._tell = None
            self._here.clear()

    def take(self, number: int, part: bytes, is_last: bool) -> None:
        """A part of an answer. Nobody waits for it any more: it is dropped."""
        found = self._open.get(number)
        if found is None or found.answer.done():
            return
        found.parts.append(part)
        found.size += len(part)
        if found.size > limits.SCAN_ANSWER_BYTES_MAX:
            self.fail(number, errors.DecodeError(f"an answer of more than {limits.SCAN_ANSWER_BYTES_MAX} bytes"))
        elif is_last:
            try:
                found.answer.set_result(_answers.decode(b"".join(found.parts)))
            except msgspec.MsgspecError as error:
                self.fail(number, errors.DecodeError(f"an answer of the lake process does not add up: {error}"))

    def fail(self, number: int, error: errors.IcestreamError) -> None:
        found = self._open.get(number)
        if found is not None and not found.answer.done():
            found.answer.set_exception(error)


def _away(message: str) -> errors.LakeAway:
    metrics.READ_WAITS.value += 1
    return errors.LakeAway(message, hint="it is started again by itself; `icestream doctor` looks at it")
