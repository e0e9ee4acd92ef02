"""Danube's client services as a handler table (handlers.py)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from icestream import limits
from icestream.broker.guarded_broker import BrokerDoor
from icestream.frontends.danube.ack_handler import ACK_COLUMNS, AckHandler
from icestream.frontends.danube.call_admission import CallAdmission
from icestream.frontends.danube.consumer_registry import ConsumerRegistry
from icestream.frontends.danube.discovery import Discovery
from icestream.frontends.danube.handlers import HandlerTable
from icestream.frontends.danube.id_registry import IdRegistry
from icestream.frontends.danube.message_sender import MessageSender
from icestream.frontends.danube.messages import COLUMNS
from icestream.frontends.danube.producer_registry import ProducerRegistry
from icestream.frontends.danube.request_batch import BatchedMethod
from icestream.frontends.danube.schema_handlers import SchemaHandlers
from icestream.metadata.store import MetadataStore
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("danube")


@dataclass(frozen=True, slots=True)
class DanubeOptions:
    """The settings of the Danube front end, as values."""

    url: str  # the advertised address of this broker
    message_bytes_max: int = limits.DANUBE_MESSAGE_BYTES_MAX_DEFAULT

    @property
    def address(self) -> str:
        """Host and port of the URL: the form that messages carry."""
        return self.url.partition("://")[2]


class DanubeService:
    """Composes the handlers of Danube's client services, and removes idle producers, consumers and sessions."""

    def __init__(self, door: BrokerDoor, store: MetadataStore, clock: Clock, options: DanubeOptions) -> None:
        """`store`: for the records of this front end alone, the ids of its clients."""
        self._tasks = Tasks(self._task_failed)
        self._admission = CallAdmission(door, self._tasks)
        ids = IdRegistry(store, clock)
        self.producers = ProducerRegistry(store, ids)
        self.consumers = ConsumerRegistry(ids, clock, options.address, options.message_bytes_max)
        self._sender = MessageSender(door.publishing, self.producers, clock, self._tasks, options.message_bytes_max)
        self._acks = AckHandler(self.consumers)
        self._discovery = Discovery(self.producers, self.consumers, options.url)
        self.schemas = SchemaHandlers()
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None

    def _task_failed(self, error: BaseException) -> None:
        _log.error("a background task of the Danube front end failed", error=repr(error))

    def table(self) -> HandlerTable:
        """The handler of each method of the client port, behind the admission of its caller. The two hot methods also
        take many requests at once."""
        table = HandlerTable(
            {
                **self.schemas.table().unary,
                "/danube.ProducerService/CreateProducer": self.producers.create,
                "/danube.ProducerService/SendMessage": self._sender.send,
                "/danube.ConsumerService/Subscribe": self.consumers.subscribe,
                "/danube.ConsumerService/Ack": self._acks.ack,
                "/danube.ConsumerService/Nack": self._acks.nack,
                "/danube.Discovery/TopicLookup": self._discovery.lookup,
                "/danube.Discovery/TopicPartitions": self._discovery.partitions,
                "/danube.HealthCheck/HealthCheck": self._discovery.health,
            },
            {"/danube.ConsumerService/ReceiveMessages": self.consumers.receive},
            {
                "/danube.ProducerService/SendMessage": BatchedMethod(COLUMNS, (0, 1), self._sender.send_batch),
                "/danube.ConsumerService/Ack": BatchedMethod(ACK_COLUMNS, (0, 1), self._acks.ack_batch),
            },
        )
        return self.guarded(table, "danube")

    def guarded(self, table: HandlerTable, listener: str) -> HandlerTable:
        """Returns the handlers behind the admission of their callers (call_admission.py). `listener`: its name."""
        return self._admission.guarded(table, listener, self.consumers.delay_failure)

    def start(self) -> None:
        """Starts the periodic removal of idle producers and consumers."""
        self._sweep = self._loop.call_later(limits.DANUBE_SWEEP_SECONDS, self._sweep_idle)

    def _sweep_idle(self) -> None:
        """Removes idle producers and consumers, every DANUBE_SWEEP_SECONDS."""
        self.producers.sweep()
        self.consumers.sweep()
        self._admission.sweep()  # last: what was removed holds no session any more
        self.start()

    def leave(self) -> None:
        """Ends the streams; calls in flight continue."""
        if self._sweep is not None:
            self._sweep.cancel()
        self.consumers.close()

    async def close(self) -> None:
        """Ends the background tasks, after the listeners are closed."""
        self.producers.close()
        await self._tasks.stop()
