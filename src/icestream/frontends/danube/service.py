"""Danube's client services, as a table of handlers (calls.py)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from icestream import limits
from icestream.broker.service import Broker
from icestream.frontends.danube.acknowledging import ACK_COLUMNS, Acknowledging
from icestream.frontends.danube.batch import BatchedMethod
from icestream.frontends.danube.calls import Table
from icestream.frontends.danube.consumers import Consumers
from icestream.frontends.danube.discovery import Discovery
from icestream.frontends.danube.ids import Ids
from icestream.frontends.danube.messages import COLUMNS
from icestream.frontends.danube.producers import Producers
from icestream.frontends.danube.schemas import Schemas
from icestream.frontends.danube.sending import Sending
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.runtime.tasks import Tasks

_log = get_logger("danube")


@dataclass(frozen=True, slots=True)
class DanubeOptions:
    url: str  # where clients reach this broker
    message_bytes_max: int = limits.DANUBE_MESSAGE_BYTES_MAX_DEFAULT

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]


class DanubeService:
    def __init__(self, broker: Broker, clock: Clock, options: DanubeOptions) -> None:
        self._tasks = Tasks(self._task_failed)
        ids = Ids(broker.store, clock)
        self.producers = Producers(broker, ids)
        self.consumers = Consumers(broker, ids, clock, options.address, options.message_bytes_max)
        self._sending = Sending(broker, self.producers, clock, self._tasks, options.message_bytes_max)
        self._acknowledging = Acknowledging(broker, self.consumers)
        self._discovery = Discovery(broker, self.producers, self.consumers, options.url)
        self.schemas = Schemas(broker)
        self._loop = asyncio.get_running_loop()
        self._sweep: asyncio.TimerHandle | None = None

    def _task_failed(self, error: BaseException) -> None:
        _log.error("a task of the Danube front end failed", error=repr(error))

    def table(self) -> Table:
        return Table(
            {
                **self.schemas.table().unary,
                "/danube.ProducerService/CreateProducer": self.producers.create,
                "/danube.ProducerService/SendMessage": self._sending.send,
                "/danube.ConsumerService/Subscribe": self.consumers.subscribe,
                "/danube.ConsumerService/Ack": self._acknowledging.ack,
                "/danube.ConsumerService/Nack": self._acknowledging.nack,
                "/danube.Discovery/TopicLookup": self._discovery.lookup,
                "/danube.Discovery/TopicPartitions": self._discovery.partitions,
                "/danube.HealthCheck/HealthCheck": self._discovery.health,
            },
            {"/danube.ConsumerService/ReceiveMessages": self.consumers.receive},
            {
                "/danube.ProducerService/SendMessage": BatchedMethod(COLUMNS, (0, 1), self._sending.send_batch),
                "/danube.ConsumerService/Ack": BatchedMethod(ACK_COLUMNS, (0, 1), self._acknowledging.ack_batch),
            },
        )

    def start(self) -> None:
        self._sweep = self._loop.call_later(limits.DANUBE_SWEEP_SECONDS, self._look)

    def _look(self) -> None:
        """Every few seconds, whether somebody is gone. It costs nothing while nobody is here."""
        self.producers.sweep()
        self.consumers.sweep()
        self.start()

    def leave(self) -> None:
        """Streams end; calls that are under way go on."""
        if self._sweep is not None:
            self._sweep.cancel()
        self.consumers.close()

    async def close(self) -> None:
        self.producers.close()
        await self._tasks.stop()
