"""Calls about erasures over the local socket: those of commands (admin_api/erasure_api.py), and those of the driver.

method                   arguments                    result
pipeline_next_erasure                                 request: msgpack of an ErasureRequest, or nil
pipeline_report_erasure  progress: msgpack            is_known: False if the command that began it is forgotten
pipeline_retire_log      topic_id, cut, is_check      left: what the log still has below the cut, in words
pipeline_retained_places topic_id, after              places: shard and offset of MQTT's retained messages, in order
pipeline_forget_retained topic_id, places             count: so many retained messages were dropped

Rights: `delete` and `maintain` on the topic, for a dry run and a check, too: they tell whether a person is in it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors, limits
from icestream.admin_api import erasure_api as api
from icestream.broker.erasure_service import ErasureService
from icestream.frontends.native.public_calls import Call, Caller, Document, decode_arguments
from icestream.internal_api.implementation import implements, native_calls
from icestream.model.erasure_messages import ErasureMode, ErasureProgress, HistoryChoice
from icestream.model.topic_name import TopicName
from icestream.security.action import Action
from icestream.security.change_audit import ChangeAudit
from icestream.security.resource import topic_resource

ERASURE_METHODS: Final = (
    "pipeline_next_erasure",
    "pipeline_report_erasure",
    "pipeline_retire_log",
    "pipeline_retained_places",
    "pipeline_forget_retained",
)
_progress: Final = msgspec.msgpack.Decoder(ErasureProgress)


class ReportErasure(msgspec.Struct):
    progress: bytes


class RetireLog(msgspec.Struct):
    topic_id: int
    cut: dict[str, int]
    is_check: bool = False


class RetainedPlaces(msgspec.Struct):
    topic_id: int
    after: list[int] | None = None  # shard and offset


class ForgetRetained(msgspec.Struct):
    topic_id: int
    places: list[tuple[int, int]]


class ErasureCalls:
    """`service` is None for a broker in memory, and with another catalog."""

    def __init__(self, service: ErasureService | None, audit: ChangeAudit | None) -> None:
        self._erasures = service
        self._audit = audit

    def calls(self) -> dict[str, Call]:
        return native_calls(self) | {name: getattr(self, name) for name in ERASURE_METHODS}

    @property
    def _service(self) -> ErasureService:
        if self._erasures is None:
            raise errors.InvalidInput(
                "erasure needs tables in the embedded catalog",
                hint="in memory and with another catalog nothing is erased by this command (docs/table-care.md)",
            )
        return self._erasures

    # --- commands ---

    @implements(api.BEGIN_ERASURE)
    async def begin_erasure(self, caller: Caller, request: api.NewErasure) -> api.BegunErasure:
        topic = caller.broker.erasable_topic(TopicName.parse(request.topic))
        try:
            mode, history = ErasureMode(request.mode), HistoryChoice(request.history)
        except ValueError as error:
            raise errors.InvalidInput(
                f"an erasure: {error}"[:100], hint="mode: dry-run, erase or check; history: drop or rewrite"
            ) from None
        service = self._service
        name, shards = topic.name, topic.record.shards
        resource, session = topic_resource(name), caller.session
        subscriptions = [subscription.record for subscription in topic.subscriptions.values()]
        named = {record.failure.dead_letter_topic for record in subscriptions}
        named |= {record.dead_letters_before for record in subscriptions}
        # Also those of subscriptions that were deleted, as far as the broker created their topics.
        named |= {str(other.name) for other in caller.broker.list_topics() if other.record.dead_letters_of == str(name)}
        dead_letters = sorted(letters for letters in named if letters)

        async def begin() -> str:
            erasure = await service.begin(
                topic.record.id,
                str(name),
                shards,
                request.where,
                mode,
                history=history,
                dead_letters=dead_letters,
            )
            return erasure.id

        if mode is not ErasureMode.ERASE or self._audit is None or session.is_unrestricted:
            return api.BegunErasure(id=await begin())
        # Without the predicate: the audit must not keep what is erased.
        async with self._audit.change(session, Action.DELETE, resource, f"erased messages of {name}"):
            return api.BegunErasure(id=await begin())

    @implements(api.ERASURE_STATE)
    async def erasure_state(self, caller: Caller, request: api.ErasureOnly) -> api.ErasureState:
        caller.broker.erasable_topic(TopicName.parse(request.topic))
        progress, report = (
            self._service.progress(request.id) if request.id else (ErasureProgress("", "", is_done=True), None)
        )
        return api.ErasureState(
            phase=progress.phase,
            done=progress.done,
            all=progress.all,
            is_done=progress.is_done,
            error=progress.error,
            hint=progress.hint,
            public_key=self._service.public_key,
            report=report,
        )

    # --- the driver ---

    async def pipeline_next_erasure(self, caller: Caller, arguments: Document) -> Document:
        request = self._service.next_request()
        return {"request": None if request is None else msgspec.msgpack.encode(request)}

    async def pipeline_report_erasure(self, caller: Caller, arguments: Document) -> Document:
        try:
            progress = _progress.decode(decode_arguments(ReportErasure, arguments).progress)
        except msgspec.MsgspecError as error:
            raise errors.DecodeError(f"progress of an erasure: {error}") from None
        return {"is_known": await self._service.report(progress)}

    async def pipeline_retire_log(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(RetireLog, arguments)
        cut = {int(shard): end for shard, end in request.cut.items()}
        return {"left": await self._service.retire_log(request.topic_id, cut, is_check=request.is_check)}

    async def pipeline_retained_places(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(RetainedPlaces, arguments)
        after = (-1, -1) if request.after is None else (request.after[0], request.after[1])
        places = await self._service.retained_places(request.topic_id)
        page = [place for place in places if place > after][: limits.ERASURE_PLACES_MAX]
        return {"places": [[*place] for place in page]}

    async def pipeline_forget_retained(self, caller: Caller, arguments: Document) -> Document:
        request = decode_arguments(ForgetRetained, arguments)
        return {"count": await self._service.forget_retained(request.topic_id, set(request.places))}
