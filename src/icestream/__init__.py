"""Icestream: a message broker whose topics are Apache Iceberg tables. These names are its Python client.

    async with icestream.connect() as client:
        async with client.producer("/default/orders") as producer:
            await producer.send(b"one")
        async with client.subscribe("/default/orders", "billing", start="earliest") as messages:
            async for message in messages:
                message.ack()

docs/client.md has the rest.
"""

from typing import TYPE_CHECKING

from icestream.client.public import __dir__, __getattr__

if TYPE_CHECKING:
    from icestream import errors, testing
    from icestream.client.arrow import ArrowBatch
    from icestream.client.batch import MessageId
    from icestream.client.blocking import BlockingClient, BlockingProducer, BlockingSubscription, connect_sync
    from icestream.client.client import Client, TopicInfo, TopicPolicies, connect
    from icestream.client.message import Gap, Message
    from icestream.client.producer import Producer
    from icestream.client.stalls import Stall
    from icestream.client.subscription import Subscription
    from icestream.rpc.client_tls import ClientTls

    __version__: str

__all__ = [
    "connect",
    "connect_sync",
    "Client",
    "ClientTls",
    "TopicInfo",
    "TopicPolicies",
    "Producer",
    "MessageId",
    "Subscription",
    "Message",
    "Gap",
    "Stall",
    "ArrowBatch",
    "BlockingClient",
    "BlockingProducer",
    "BlockingSubscription",
    "errors",
    "testing",
    "__version__",
    "__dir__",
    "__getattr__",
]
