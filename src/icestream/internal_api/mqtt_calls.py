"""Calls about MQTT over the local socket (admin_api/mqtt_api.py): the broker decides and answers (guarded_mqtt.py)."""

from __future__ import annotations

from icestream import limits
from icestream.admin_api import mqtt_api as api
from icestream.admin_api.admin_call import Listing, PageRequest
from icestream.frontends.native.public_calls import Call, Caller
from icestream.internal_api.implementation import implements, native_calls
from icestream.security.change_audit import ChangeAudit, cluster_change


class MqttCalls:
    """The implementations of the declared calls."""

    def __init__(self, audit: ChangeAudit | None) -> None:
        """`audit`: None for a node without one."""
        self._audit = audit

    def calls(self) -> dict[str, Call]:
        return native_calls(self)

    @implements(api.PAGE_MQTT_SESSIONS)
    async def page_sessions(self, caller: Caller, request: api.PageMqttSessions) -> Listing[api.MqttSessionSummary]:
        return await caller.broker.mqtt.sessions(request)

    @implements(api.INSPECT_MQTT_SESSION)
    async def inspect_session(self, caller: Caller, request: api.MqttClientOnly) -> api.MqttSessionDetails:
        return await caller.broker.mqtt.session(request.client_id)

    @implements(api.KICK_MQTT_CLIENT)
    async def kick(self, caller: Caller, request: api.KickMqttClient) -> api.KickedMqttClient:
        action = caller.broker.mqtt.check_kick(delete_session=request.delete_session)
        end = "deleted the MQTT session of" if request.delete_session else "disconnected the MQTT client"
        detail = f"{end} {request.client_id[: limits.NAME_BYTES_MAX]}"
        async with cluster_change(self._audit, caller.session, detail, action):
            was_connected = await caller.broker.mqtt.kick(request.client_id, delete_session=request.delete_session)
        return api.KickedMqttClient(
            client_id=request.client_id, was_connected=was_connected, is_session_deleted=request.delete_session
        )

    @implements(api.PAGE_MQTT_SUBSCRIPTIONS)
    async def page_subscriptions(
        self, caller: Caller, request: api.PageMqttSubscriptions
    ) -> Listing[api.MqttSubscription]:
        return await caller.broker.mqtt.subscriptions(request)

    @implements(api.PAGE_MQTT_TOPICS)
    async def page_topics(self, caller: Caller, request: api.PageMqttTopics) -> Listing[api.MqttTopicSummary]:
        return await caller.broker.mqtt.topics(request)

    @implements(api.PAGE_MQTT_RETAINED)
    async def page_retained(self, caller: Caller, request: api.PageMqttRetained) -> Listing[api.MqttRetainedMessage]:
        return await caller.broker.mqtt.retained(request)

    @implements(api.CLEAR_MQTT_RETAINED)
    async def clear_retained(self, caller: Caller, request: api.ClearMqttRetained) -> api.ClearedMqttRetained:
        return api.ClearedMqttRetained(cleared=await caller.broker.mqtt.clear_retained(request.filter))

    @implements(api.PAGE_MQTT_ROUTES)
    async def page_routes(self, caller: Caller, request: PageRequest) -> Listing[api.MqttRoute]:
        return await caller.broker.mqtt.routes(request)
