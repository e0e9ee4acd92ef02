"""Discovery and HealthCheck: where a topic is served, its partitions, and whether an id is still valid.

A lookup creates nothing. Names match exactly, never by prefix. A health check always succeeds: a client whose check
fails once never repeats it, and would not notice that its consumer is gone.
"""

from __future__ import annotations

from icestream import errors
from icestream.frontends.danube.consumer_registry import ConsumerRegistry
from icestream.frontends.danube.handlers import Call, decode
from icestream.frontends.danube.partition_names import base_name, wire_names
from icestream.frontends.danube.producer_registry import ProducerRegistry
from icestream.frontends.danube.wire import danube_pb2 as pb
from icestream.observability.log import get_logger

_log = get_logger("danube")


class Discovery:
    """Handlers of the services Discovery and HealthCheck."""

    def __init__(self, producers: ProducerRegistry, consumers: ConsumerRegistry, url: str) -> None:
        self._producers = producers
        self._consumers = consumers
        self._url = url

    async def lookup(self, raw: bytes, call: Call) -> bytes:
        """Handles TopicLookup: this broker, or a redirect to the node that serves the topic. Raises UnknownTopic."""
        request = decode(pb.TopicLookupRequest, raw)
        response_type, url = pb.TopicLookupResponse.Connect, self._url
        try:
            await call.client.locate_topic(base_name(request.topic))
        except errors.TopicElsewhere as error:
            response_type, url = pb.TopicLookupResponse.Redirect, error.details.get("danube", "")
            if not url:  # that node has no Danube port, or is gone: the error says so, a redirect could not
                raise
        if not wire_names(call.client, request.topic):
            raise errors.UnknownTopic(f"there is no topic {request.topic}", hint="TopicPartitions lists its partitions")
        response = pb.TopicLookupResponse(
            request_id=request.request_id, response_type=response_type, connect_url=url, broker_url=url
        )
        return response.SerializeToString()

    async def partitions(self, raw: bytes, call: Call) -> bytes:
        """Handles TopicPartitions: the partitions of a topic; empty for a topic that does not exist."""
        request = decode(pb.TopicLookupRequest, raw)
        names = wire_names(call.client, request.topic)
        return pb.TopicPartitionsResponse(request_id=request.request_id, partitions=names).SerializeToString()

    async def health(self, raw: bytes, call: Call) -> bytes:
        """Handles HealthCheck: CLOSE tells the client to create its producer or consumer again."""
        request = decode(pb.HealthCheckRequest, raw)
        if request.client not in pb.HealthCheckRequest.ClientType.values():
            raise errors.InvalidInput(f"unknown client type {request.client}", hint="0: a producer, 1: a consumer")
        is_consumer = request.client == pb.HealthCheckRequest.Consumer
        registry = self._consumers if is_consumer else self._producers
        try:
            is_known = await registry.is_known(request.id, call.client)
        except (errors.PermissionDenied, errors.Unauthenticated):
            is_known = False  # the client registers again, and learns why it may not
        except errors.IcestreamError as error:
            # CLOSE would make every client register again while the metadata store is away.
            _log.warning("health check: cannot look up the id, answered OK", id=request.id, error=str(error))
            is_known = True
        status = pb.HealthCheckResponse.OK if is_known else pb.HealthCheckResponse.CLOSE
        return pb.HealthCheckResponse(status=status).SerializeToString()
