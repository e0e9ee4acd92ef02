"""/api/v1/mqtt: sessions, subscriptions, topics, retained messages and routes of MQTT on this node"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from icestream import limits
from icestream.admin_api import mqtt_api as api
from icestream.admin_api.admin_call import Listing
from icestream.lake.broker_calls import PREFIX, BrokerDep, PageDep
from icestream.lake.http_models import body, extend, model_of

router = APIRouter(prefix=PREFIX + "/mqtt", tags=["mqtt"])
_TEXT_MAX = limits.MQTT_TEXT_BYTES_MAX
# In the query and not in the path: client ids and topics have slashes.
ClientId = Annotated[str, Query(min_length=1, max_length=_TEXT_MAX, description="The client id.")]
ClientPattern = Annotated[
    str, Query(alias="client_id", max_length=_TEXT_MAX, description="Only these client ids; `*` and `?` are wildcards.")
]
Filter = Annotated[
    str, Query(alias="filter", max_length=_TEXT_MAX, description="Only topics that this topic filter matches.")
]
HasPayload = Annotated[bool, Query(alias="payload", description="With the first characters of the payload.")]


@router.get(
    "/sessions", response_model=model_of(Listing[api.MqttSessionSummary]), summary="List MQTT sessions, with their lag"
)
async def list_sessions(
    broker: BrokerDep,
    page: PageDep,
    client_id: ClientPattern = "",
    connected: Annotated[bool | None, Query(description="Only connected, or only disconnected ones.")] = None,
    lagging: Annotated[bool, Query(description="Only those that lag, the largest lag first.")] = False,
) -> Listing[api.MqttSessionSummary]:
    request = extend(api.PageMqttSessions, page, client_id=client_id, is_connected=connected, is_lagging=lagging)
    return await broker(api.PAGE_MQTT_SESSIONS, request)


@router.get(
    "/session",
    response_model=model_of(api.MqttSessionDetails),
    summary="Show an MQTT session: subscriptions, positions, messages in flight, will",
)
async def inspect_session(broker: BrokerDep, client_id: ClientId) -> api.MqttSessionDetails:
    return await broker(api.INSPECT_MQTT_SESSION, api.MqttClientOnly(client_id))


@router.post(
    "/kick",
    response_model=model_of(api.KickedMqttClient),
    summary="Disconnect an MQTT client, and delete its session if wanted",
)
async def kick(
    broker: BrokerDep, request: Annotated[api.KickMqttClient, body(api.KickMqttClient)]
) -> api.KickedMqttClient:
    return await broker(api.KICK_MQTT_CLIENT, request)


@router.get(
    "/subscriptions",
    response_model=model_of(Listing[api.MqttSubscription]),
    summary="List subscriptions of MQTT clients",
)
async def list_subscriptions(
    broker: BrokerDep,
    page: PageDep,
    client_id: ClientPattern = "",
    topic: Annotated[str, Query(max_length=_TEXT_MAX, description="Only those that match this topic.")] = "",
) -> Listing[api.MqttSubscription]:
    return await broker(
        api.PAGE_MQTT_SUBSCRIPTIONS, extend(api.PageMqttSubscriptions, page, client_id=client_id, topic=topic)
    )


@router.get(
    "/topics", response_model=model_of(Listing[api.MqttTopicSummary]), summary="List MQTT topics that had messages"
)
async def list_topics(
    broker: BrokerDep,
    page: PageDep,
    topic_filter: Filter = "",
    contains: Annotated[str, Query(max_length=_TEXT_MAX, description="Only topics that contain this text.")] = "",
    has_payload: HasPayload = False,
) -> Listing[api.MqttTopicSummary]:
    request = extend(api.PageMqttTopics, page, filter=topic_filter, contains=contains, has_payload=has_payload)
    return await broker(api.PAGE_MQTT_TOPICS, request)


@router.get(
    "/retained", response_model=model_of(Listing[api.MqttRetainedMessage]), summary="List retained messages of MQTT"
)
async def list_retained(
    broker: BrokerDep, page: PageDep, topic_filter: Filter = "", has_payload: HasPayload = False
) -> Listing[api.MqttRetainedMessage]:
    request = extend(api.PageMqttRetained, page, filter=topic_filter, has_payload=has_payload)
    return await broker(api.PAGE_MQTT_RETAINED, request)


@router.post(
    "/retained/clear",
    response_model=model_of(api.ClearedMqttRetained),
    summary="Clear the retained messages of a topic filter",
)
async def clear_retained(
    broker: BrokerDep, request: Annotated[api.ClearMqttRetained, body(api.ClearMqttRetained)]
) -> api.ClearedMqttRetained:
    return await broker(api.CLEAR_MQTT_RETAINED, request)


@router.get(
    "/routes", response_model=model_of(Listing[api.MqttRoute]), summary="List which MQTT topics are stored where"
)
async def list_routes(broker: BrokerDep, page: PageDep) -> Listing[api.MqttRoute]:
    return await broker(api.PAGE_MQTT_ROUTES, page)
