"""Between an MQTT front end and the broker: a connected client as the broker sees it, and its session as the wire does.

    front end                                    broker
    ------------------------------------------   ---------------------------------------------------------------------
    CONNECT, authenticated                       GuardedBroker.connect_mqtt(ConnectRequest, link) -> ClientSession
    accept(received_ids, resumed)                when it returns; then `begin`: deliveries may leave
    PUBLISH …, a run in the order of the wire    publish(messages); each is settled by `link.settle`, in any order
    PUBREL                                       release(packet_id) … link.release_done
    SUBSCRIBE, UNSUBSCRIBE                       await subscribe(packet) … link.subscribed, then retained messages
    PUBACK, PUBCOMP, a refusing PUBREC           delivery_done(packet_id, reason_code)
    PUBACKs that say success, any number         deliveries_done(packet_ids)
    PUBREC                                       delivery_received(packet_id) … link.send_release
    socket is writable again                     resume_sending()
    end of the connection, once                  end(ConnectionEnded)

A front end that receives many plain messages (QoS 0 and 1, not retained, without properties) may group them, so that
nothing is done for each of them:

    first plain message for a topic              publish(messages), then publish_route(topic): where the next ones go
    plain messages of a burst, of any number     BurstPublisher.publish_burst(PublishBurst): one block for each shard,
    of clients, for topics with a route          one append, one outcome. False if one of them needs a decision of its
                                                 own: then the front end hands each over by `publish`

Everything runs on the loop. The front end hands over packets in the order in which they arrived; while a SUBSCRIBE or
UNSUBSCRIBE is awaited, later packets wait, but acks of deliveries and PINGREQ do not (hazard 67). The commands of a
link are those of ServerConnection (mqtt/connection.py): a link whose connection has ended ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from icestream.broker.mqtt.message_rows import DeliveryRun
from icestream.durable.session_changes import WillMessage
from icestream.model.block_group import BlockGroup
from icestream.mqtt import packets
from icestream.mqtt.connection import ConnectionEnded, ResumedDelivery
from icestream.mqtt.packet_type import ProtocolVersion


class ConnectRequest(NamedTuple):
    """What a CONNECT asks for. `client_id`: empty to have one assigned. `expiry_s`: None for the default of 3.1.1."""

    client_id: str
    version: ProtocolVersion
    is_clean_start: bool
    expiry_s: int | None
    receive_maximum: int
    will: WillMessage | None = None


class ReceivedMessage(NamedTuple):
    """A PUBLISH with the number by which it is settled."""

    number: int
    packet: packets.PublishPacket


class PublishRoute(NamedTuple):
    """Where plain messages of a client for a topic are stored, so that the front end may group them."""

    publisher: BurstPublisher
    # Numbers of shards, as a burst names them. For one topic it is one; else the shard of a topic is number
    # crc32(topic) mod len(queues), as for routes.
    queues: Sequence[int]
    # Messages of a lower QoS are handed over by `publish`: whether they are stored is decided for each.
    min_qos: int
    # True if the route is that of every topic which does not begin with `$`, and the client may publish to all of them.
    is_for_all: bool
    # Another object as soon as rights may have changed: what was said with a former one does not count any more.
    token: object


class PublishBurst(NamedTuple):
    """Plain messages that arrived together, as one block for each shard (`message_rows.py` has the columns)."""

    sessions: Sequence[ClientSession | None]  # of the publishers, each at least once; None for one that has ended
    queues: Sequence[int]  # of the blocks
    group: BlockGroup
    blocks: bytes
    messages: int
    largest_message_bytes: int


class BurstFailure(NamedTuple):
    """Why the messages of a burst were not stored. `is_unknown`: they may have been stored after all (hazard 66)."""

    reason_code: int
    reason: str
    is_unknown: bool


class BurstPublisher(Protocol):
    """Stores messages of many clients at once; the same object for all clients of a broker."""

    def publish_burst(self, burst: PublishBurst, on_done: Callable[[BurstFailure | None], None]) -> bool:
        """Stores the messages, each as `ClientSession.publish` would. `on_done` gets None when they are stored, as
        durable as the log's mode promises.

        False if one of them needs a decision of its own: a client that has ended or waits for room, rights that have
        changed, a policy of a topic, no room in the log. Then nothing is stored, `on_done` is not called, and the front
        end forgets the routes of these clients.
        """


class ClientLink(Protocol):
    """The connection of a client, for the broker."""

    @property
    def address(self) -> str:
        """Where the client is, as `host:port`."""

    @property
    def can_send(self) -> bool:
        """False while so many bytes wait for the socket that deliveries should wait too."""

    def settle(self, number: int, reason_code: int) -> None:
        """The outcome of a received message."""

    def abandon(self, reason_code: int, reason: str) -> None:
        """The outcome of a received message is unknown: closes without acking it or what is behind it (hazard 66)."""

    def release_done(self, packet_id: int) -> None:
        """PUBCOMP may leave."""

    def subscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str) -> None: ...

    def unsubscribed(self, packet_id: int, reason_codes: tuple[int, ...], reason: str) -> None: ...

    def send_publish(self, packet: packets.PublishPacket) -> bool:
        """Sends a delivery, with its packet id (0 for QoS 0). False if it is too large for the client: it counts as
        delivered, and its id is free."""

    def send_run(self, run: DeliveryRun) -> Sequence[int]:
        """Sends the packets of a run, as `send_publish` would one by one. Returns the ids of those too large for it."""

    def send_release(self, packet_id: int) -> None:
        """PUBREL may leave."""

    def disconnect(self, reason_code: int, reason: str) -> None:
        """Ends the connection with a reason; `ClientSession.end` follows."""


class ClientSession(Protocol):
    """The session of a connected client, for the front end. After `end` nothing of it may be called."""

    @property
    def client_id(self) -> str:
        """The client id, also one that was assigned."""

    @property
    def is_present(self) -> bool:
        """The session-present flag of CONNACK."""

    @property
    def received_ids(self) -> Sequence[int]:
        """Inbound QoS 2 ids between PUBREC and PUBREL, for `ServerConnection.accept`."""

    @property
    def resumed(self) -> Sequence[ResumedDelivery]:
        """What is sent again, for `ServerConnection.accept`."""

    def begin(self) -> None:
        """CONNACK and what is resumed are sent: deliveries may leave from now on."""

    def publish(self, messages: Sequence[ReceivedMessage]) -> None: ...

    @property
    def takes_bursts(self) -> bool:
        """False while a message of this client needs a decision of its own."""

    def publish_route(self, topic: str) -> PublishRoute | None:
        """Where plain messages of this client for the topic may go in bursts; None if each needs a decision."""

    def release(self, packet_id: int) -> None: ...

    async def subscribe(self, packet: packets.SubscribePacket) -> None: ...

    async def unsubscribe(self, packet: packets.UnsubscribePacket) -> None: ...

    def delivery_received(self, packet_id: int) -> None: ...

    def delivery_done(self, packet_id: int, reason_code: int) -> None: ...

    def deliveries_done(self, packet_ids: Sequence[int]) -> None:
        """The same for messages of QoS 1, with success."""

    def resume_sending(self) -> None: ...

    def end(self, ended: ConnectionEnded) -> None: ...
