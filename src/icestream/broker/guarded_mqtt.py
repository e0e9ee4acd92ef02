"""What operators see and do of MQTT, for one session: each use case asks for its right (broker/mqtt/mqtt_views.py).

describe cluster    sessions and subscriptions: they belong to no topic, and name clients and their addresses
alter cluster       disconnecting a client
delete cluster      deleting its session too
describe            topics and retained messages: on the topic that stores them, or by a rule about their MQTT topic;
                    listings have what may be described. A payload needs the right to consume it
produce             clearing a retained message, by the same rules: it is a publish of an empty one
describe topic      routes: the visible ones are those of topics that may be described

Publishing and subscribing of MQTT clients are decided in broker/mqtt/connected_client.py.
"""

from __future__ import annotations

from functools import partial

from icestream import limits
from icestream.admin_api import mqtt_api as api
from icestream.admin_api.admin_call import Listing, PageRequest
from icestream.broker.mqtt import mqtt_views
from icestream.broker.mqtt.mqtt_service import MqttService
from icestream.broker.mqtt.mqtt_views import TopicRights
from icestream.model.topic_name import TopicName
from icestream.mqtt.topics import matches
from icestream.security.access_session import AccessSession
from icestream.security.action import Action
from icestream.security.resource import CLUSTER, mqtt_topic_resource, topic_resource


class GuardedMqtt:
    """The listings of mqtt_views.py, and what operators do; each may raise PermissionDenied too."""

    def __init__(self, service: MqttService, session: AccessSession) -> None:
        self._mqtt = service
        self._session = session

    @property
    def _service(self) -> MqttService:
        """Raises TopicElsewhere if another node of the cluster serves MQTT: what there is to see is there."""
        self._mqtt.check_home()
        return self._mqtt

    async def sessions(self, request: api.PageMqttSessions) -> Listing[api.MqttSessionSummary]:
        self._session.require(Action.DESCRIBE, CLUSTER)
        return await mqtt_views.page_sessions(self._service, request)

    async def session(self, client_id: str) -> api.MqttSessionDetails:
        self._session.require(Action.DESCRIBE, CLUSTER)
        return await mqtt_views.session_details(self._service, client_id)

    async def subscriptions(self, request: api.PageMqttSubscriptions) -> Listing[api.MqttSubscription]:
        self._session.require(Action.DESCRIBE, CLUSTER)
        return await mqtt_views.page_subscriptions(self._service, request)

    def check_kick(self, *, delete_session: bool) -> Action:
        """The action that a kick is, once it is allowed."""
        self._session.require(Action.ALTER, CLUSTER)
        if not delete_session:
            return Action.ALTER
        self._session.require(Action.DELETE, CLUSTER)
        return Action.DELETE

    async def kick(self, client_id: str, *, delete_session: bool) -> bool:
        """Ends the connection of a client; True if it had one. Raises UnknownSession."""
        self.check_kick(delete_session=delete_session)
        return await self._service.kick(client_id, delete_session=delete_session)

    async def topics(self, request: api.PageMqttTopics) -> Listing[api.MqttTopicSummary]:
        return await mqtt_views.page_topics(self._service, request, self._topic_rights())

    async def retained(self, request: api.PageMqttRetained) -> Listing[api.MqttRetainedMessage]:
        return await mqtt_views.page_retained(self._service, request, self._topic_rights())

    def _topic_rights(self) -> TopicRights:
        if self._session.is_unrestricted:
            return mqtt_views.ALL_TOPICS
        return TopicRights(partial(self._may, Action.DESCRIBE), partial(self._may, Action.CONSUME))

    def _may(self, action: Action, topic: str) -> bool:
        routes = [topic_resource(self._stored_in(topic))]
        return self._session.decide(action, mqtt_topic_resource(topic), is_recorded=False, routes=routes).is_allowed

    def _stored_in(self, topic: str) -> TopicName:
        return self._service.routes.route_of(topic).target.topic.name

    async def clear_retained(self, topic_filter: str) -> int:
        """Clears the retained messages of a filter that may be described; returns their number.

        Raises InvalidInput for a malformed filter, PermissionDenied, before anything is cleared, for a topic that may
        not be published to.
        """
        mqtt_views.check_mqtt_filter(topic_filter)
        describes = self._topic_rights().describes
        values = self._service.retained.latest(len(self._service.retained))
        topics = [value.topic for value in values if matches(topic_filter, value.topic) and describes(value.topic)]
        for topic in topics:
            self._session.require_mqtt_publish(topic, self._stored_in(topic))
        for start in range(0, len(topics), limits.API_CLEAR_TOPICS):
            await self._service.clear_retained(topics[start : start + limits.API_CLEAR_TOPICS])
        return len(topics)

    async def routes(self, request: PageRequest) -> Listing[api.MqttRoute]:
        def is_shown(topic: str) -> bool:
            return self._session.is_allowed(Action.DESCRIBE, topic_resource(TopicName.parse(topic)))

        return await mqtt_views.page_routes(self._service, request, is_shown)
