"""The audit: events of security as messages of the topic `/system/audit`, which is a table like any other.

    event                     recorded                                   where it cannot be written
    administrative change     durable before the change takes effect     the change is refused
    change that failed        merged, within a second                    counted
    denial, failed login      merged, within a second                    counted, the request goes on as decided
    access that creates,      merged, within a second                    counted, the request goes on
    alters or deletes
    other access, by setting  the same

An administrative change is one of accounts, members or settings. Topics, namespaces, subscriptions, schemas and tables
are changed by clients too, such as a producer that creates its topic.

The broker writes it by an internal producer; the decision denies every client to write, alter or delete `/system`, and
so does the table's resource (hazard 121). Nothing that the audit does is audited: it has no session, and accesses to
`/system` are not recorded. Denials there are. The topic is created with the first event, so a broker without accounts
has none.

In a cluster a topic is served by one node. The node that creates `/system/audit` serves it; the others record in
`/system/audit-NODE`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from icestream import errors, limits
from icestream.broker.broker_topic import BrokerProducer
from icestream.broker.dead_letter_writer import InternalProducers
from icestream.broker.storage import PersistentStorage
from icestream.model import envelope
from icestream.model.block import Values, encode_block
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.security.access_policy import SYSTEM_NAMESPACE, Decision, is_system
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.audit_event import AuditEvent, AuditMerge, Event, audit_event
from icestream.security.authenticator import FailedLogin
from icestream.security.resource import Resource

AUDIT_TOPIC: Final = TopicName(SYSTEM_NAMESPACE, "audit")
_PRODUCER: Final = "audit/events"
_FLUSH_SECONDS: Final = 1.0
_CHANGES: Final = frozenset({Action.CREATE, Action.ALTER, Action.DELETE, Action.RESTORE, Action.MAINTAIN})
_log = get_logger("audit")


class AuditLog:
    """Records events. Its methods without `async` do not wait: callers decide on."""

    def __init__(
        self,
        producers: InternalProducers,
        storage: PersistentStorage,
        clock: Clock,
        node: str,
        events_per_second: int = limits.AUDIT_EVENTS_PER_SECOND,
        *,
        records_access: bool = False,
    ) -> None:
        """`node`: the name of this node, which events carry. `records_access`: every access is an event."""
        self._records_access = records_access
        self._producers = producers
        self._storage = storage
        self._clock = clock
        self._node = node
        self._merge = AuditMerge(events_per_second, node)
        self._producer: BrokerProducer | None = None
        self._opening = asyncio.Lock()
        self._flushing: asyncio.Task[None] | None = None
        self._is_failing = False  # said once, until a write succeeds

    # --- what happens: merged ---

    def denied(self, session: AccessSession, action: Action, resource: Resource, decision: Decision) -> None:
        """Records a denial."""
        metrics.DENIALS.add(action.value)
        self._add(self._decision("denied", session, action, resource, decision))

    def accessed(self, session: AccessSession, action: Action, resource: Resource, decision: Decision) -> None:
        """Records an access that was allowed, if it changes something or all are recorded; not one of the audit
        itself."""
        if (self._records_access or action in _CHANGES) and not is_system(resource):
            self._add(self._decision("access", session, action, resource, decision))

    def login_failed(self, login: FailedLogin) -> None:
        """Records a failed login, with the name that was claimed."""
        self._add(
            audit_event(
                self._clock.wall_us(),
                "login-failed",
                principal=login.name,
                address=login.address,
                listener=login.listener,
                rule=login.reason,
                node=self._node,
            )
        )

    # --- changes: durable first ---

    @contextlib.asynccontextmanager
    async def change(
        self, session: AccessSession, action: Action, resource: Resource, detail: str
    ) -> AsyncIterator[None]:
        """Records an administrative change before the body makes it; a body that raises is recorded, too.

        `detail` says what is changed, in words, without a secret. Raises Refused if the event cannot be made durable:
        the body does not run then.
        """
        event = audit_event(
            self._clock.wall_us(), "change", principal=str(session.identity.principal), address=session.address,
            listener=session.listener, action=action.value, resource=str(resource), is_allowed=True, detail=detail,
            node=self._node,
        )  # fmt: skip
        try:
            async with asyncio.timeout(limits.AUDIT_SECONDS_MAX):
                await self._store([event])
                await self._storage.wait_durable()
        except (errors.IcestreamError, TimeoutError) as error:
            reason = str(error) or f"it took longer than {limits.AUDIT_SECONDS_MAX} s"
            self._report_failure(reason)
            raise errors.Refused(
                f"the change was refused because it could not be recorded in {AUDIT_TOPIC}: {reason}",
                hint="make the log writable, for example free disk space, and try again",
            ) from error
        try:
            yield
        except errors.IcestreamError as error:
            failed = audit_event(
                self._clock.wall_us(), "change-failed", principal=event.principal, address=event.address,
                listener=event.listener, action=event.action, resource=event.resource, rule=error.code,
                detail=event.detail, node=self._node,
            )  # fmt: skip
            self._add(failed)
            raise

    # --- writing ---

    async def flush(self) -> None:
        """Writes what was merged until now. Does not raise: what cannot be written is counted."""
        events = self._merge.take(self._clock.wall_us())
        if not events:
            return
        try:
            await self._store(events)
        except errors.IcestreamError as error:
            metrics.AUDIT_DROPPED.add(error.code, sum(event.count for event in events))
            self._report_failure(str(error))

    async def close(self) -> None:
        """Writes the rest. Called before the broker shuts down."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait([self._flushing])
        await self.flush()

    def _decision(
        self, event: Event, session: AccessSession, action: Action, resource: Resource, decision: Decision
    ) -> AuditEvent:
        return audit_event(
            self._clock.wall_us(), event,
            principal=str(session.identity.principal), address=session.address, listener=session.listener,
            action=action.value, resource=str(resource), is_allowed=decision.is_allowed, rule=decision.reason,
            node=self._node,
        )  # fmt: skip

    def _add(self, event: AuditEvent) -> None:
        if not self._merge.add(event):
            metrics.AUDIT_DROPPED.add("quota")
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush_later(), name="audit")

    async def _flush_later(self) -> None:
        # A task for each second with events instead of a loop: without accounts there is none.
        while not self._merge.is_empty:
            await self._clock.sleep(_FLUSH_SECONDS)
            await self.flush()

    async def _store(self, events: Sequence[AuditEvent]) -> None:
        """Stores events as one batch. Raises the error of a refusal, and that of a topic which cannot be opened."""
        for is_last in (False, True):
            producer = await self._open()
            try:
                (result,) = await self._storage.store_messages(producer.topic.shard_key(0), self._encode(events))
            except errors.UnknownTopic:
                # Deleted while security was off; it is created again.
                self._producer = None
                if is_last:
                    raise
                continue
            if isinstance(result, errors.IcestreamError):
                raise result
            break
        for event in events:
            metrics.AUDIT_EVENTS.add(event.event)
        self._is_failing = False

    async def _open(self) -> BrokerProducer:
        async with self._opening:
            if self._producer is None:
                try:
                    self._producer = await self._producers.open_internal_producer(AUDIT_TOPIC, _PRODUCER, self._node)
                except errors.TopicElsewhere:
                    own_topic = TopicName(AUDIT_TOPIC.namespace, f"{AUDIT_TOPIC.name}-{self._node}")
                    self._producer = await self._producers.open_internal_producer(own_topic, _PRODUCER, self._node)
            return self._producer

    def _encode(self, events: Sequence[AuditEvent]) -> bytes:
        columns: dict[envelope.EnvelopeColumn, Values] = {
            envelope.PUBLISH_TIME: [event.time_us for event in events],
            envelope.KEY: [event.principal.encode() for event in events],
            envelope.PAYLOAD: [event.encode() for event in events],
            envelope.HEADERS: [{"event": event.event, "decision": event.decision} for event in events],
            envelope.PRODUCER_NAME: ["audit"] * len(events),
            envelope.CONTENT_TYPE: ["application/json"] * len(events),
        }
        return encode_block(len(events), columns)

    def _report_failure(self, reason: str) -> None:
        if not self._is_failing:
            self._is_failing = True
            _log.error(
                "the audit cannot be written: administrative changes are refused, denials are only counted",
                topic=str(AUDIT_TOPIC),
                reason=reason,
            )
