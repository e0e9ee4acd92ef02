"""The right that each gRPC method needs, on the client port and on the admin port: one table for all of them. Pure.

The broker decides (broker/guarded_broker.py, broker/guarded_schemas.py), not this table. It says what is decided, for
the documentation and for tests that call every method with and without its rights. A method that is served and has no
row fails tests/matrix/test_grpc_methods.py.

    DENIED     without the right the call ends with PERMISSION_DENIED; UNAUTHENTICATED for `anonymous`
    ABSENT     without the right the answer is that for something that does not exist (hazard 123)
    OPEN       the call shows and changes nothing that belongs to a principal
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from icestream.security.action import Action
from icestream.security.resource import ResourceKind


class WithoutRight(Enum):
    """What a caller gets that lacks the right."""

    DENIED = "denied"
    ABSENT = "absent"
    OPEN = "open"


class MethodRight(NamedTuple):
    """The right of one method. `action` and `kind` are None exactly if the method is OPEN."""

    action: Action | None
    kind: ResourceKind | None
    without: WithoutRight = WithoutRight.DENIED
    note: str = ""  # further rights, and by what the method knows its resource


def _absent(action: Action, kind: ResourceKind, note: str = "") -> MethodRight:
    return MethodRight(action, kind, WithoutRight.ABSENT, note)


def _open(note: str) -> MethodRight:
    return MethodRight(None, None, WithoutRight.OPEN, note)


_DESCRIBE_CLUSTER: Final = MethodRight(Action.DESCRIBE, ResourceKind.CLUSTER)
_DESCRIBE_TOPIC: Final = MethodRight(Action.DESCRIBE, ResourceKind.TOPIC)
_DESCRIBE_SCHEMA: Final = MethodRight(Action.DESCRIBE, ResourceKind.SCHEMA)
_ALTER_SCHEMA: Final = MethodRight(Action.ALTER, ResourceKind.SCHEMA)
_CONSUME: Final = MethodRight(Action.CONSUME, ResourceKind.SUBSCRIPTION)
_ALTER_SUBSCRIPTION: Final = MethodRight(Action.ALTER, ResourceKind.SUBSCRIPTION)
_ADMIN: Final = MethodRight(Action.ADMIN, ResourceKind.CLUSTER)
_UNIMPLEMENTED: Final = _open("UNIMPLEMENTED")

CLIENT_METHODS: Final[Mapping[str, MethodRight]] = MappingProxyType({
    "/danube.ProducerService/CreateProducer": MethodRight(
        Action.PRODUCE, ResourceKind.TOPIC, note="create of an absent topic; with a schema, describe of its subject"
    ),
    "/danube.ProducerService/SendMessage": _absent(
        Action.PRODUCE, ResourceKind.TOPIC, "by the producer id, which works for the principal that created it"
    ),
    "/danube.ConsumerService/Subscribe": _CONSUME,
    "/danube.ConsumerService/ReceiveMessages": _absent(
        Action.CONSUME, ResourceKind.SUBSCRIPTION, "by the consumer id, which works for the principal that subscribed"
    ),
    "/danube.ConsumerService/Ack": _CONSUME,
    "/danube.ConsumerService/Nack": _CONSUME,
    "/danube.Discovery/TopicLookup": _DESCRIBE_TOPIC,
    "/danube.Discovery/TopicPartitions": _absent(Action.DESCRIBE, ResourceKind.TOPIC),
    "/danube.HealthCheck/HealthCheck": _open("an id of another principal is answered as an unknown one"),
})  # fmt: skip

SCHEMA_METHODS: Final[Mapping[str, MethodRight]] = MappingProxyType({
    f"/danube_schema.SchemaRegistry/{name}": right
    for name, right in {
        "RegisterSchema": _ALTER_SCHEMA,
        "GetSchema": _absent(Action.DESCRIBE, ResourceKind.SCHEMA, "by the id of the schema"),
        "GetLatestSchema": _DESCRIBE_SCHEMA,
        "ListVersions": _DESCRIBE_SCHEMA,
        "CheckCompatibility": _DESCRIBE_SCHEMA,
        "DeleteSchemaVersion": _ALTER_SCHEMA,
        "SetCompatibilityMode": _ALTER_SCHEMA,
        "ConfigureTopicSchema": MethodRight(Action.ALTER, ResourceKind.TOPIC, note="describe of the subject"),
        "UpdateTopicValidationPolicy": MethodRight(Action.ALTER, ResourceKind.TOPIC),
        "GetTopicSchemaConfig": _DESCRIBE_TOPIC,
        "ListSubjects": _absent(Action.DESCRIBE, ResourceKind.SCHEMA),
    }.items()
})  # fmt: skip

ADMIN_METHODS: Final[Mapping[str, MethodRight]] = MappingProxyType({
    f"/danube_admin.{name}": right
    for name, right in {
        "BrokerAdmin/ListBrokers": _DESCRIBE_CLUSTER,
        "BrokerAdmin/GetLeaderBroker": _DESCRIBE_CLUSTER,
        "BrokerAdmin/ListNamespaces": _absent(Action.DESCRIBE, ResourceKind.NAMESPACE),
        "BrokerAdmin/UnloadBroker": _UNIMPLEMENTED,
        "BrokerAdmin/ActivateBroker": _UNIMPLEMENTED,
        "BrokerAdmin/GetClusterBalance": _UNIMPLEMENTED,
        "BrokerAdmin/TriggerRebalance": _UNIMPLEMENTED,
        "ClusterAdmin/ClusterStatus": _UNIMPLEMENTED,
        "ClusterAdmin/AddNode": _UNIMPLEMENTED,
        "ClusterAdmin/PromoteNode": _UNIMPLEMENTED,
        "ClusterAdmin/RemoveNode": _UNIMPLEMENTED,
        "NamespaceAdmin/GetNamespaceTopics": _absent(Action.DESCRIBE, ResourceKind.NAMESPACE, "its visible topics"),
        "NamespaceAdmin/GetNamespacePolicies": _absent(Action.DESCRIBE, ResourceKind.NAMESPACE),
        "NamespaceAdmin/CreateNamespace": MethodRight(Action.CREATE, ResourceKind.NAMESPACE),
        "NamespaceAdmin/DeleteNamespace": _absent(Action.DELETE, ResourceKind.NAMESPACE),
        "TopicAdmin/ListNamespaceTopics": _absent(Action.DESCRIBE, ResourceKind.NAMESPACE, "its visible topics"),
        "TopicAdmin/ListBrokerTopics": _absent(Action.DESCRIBE, ResourceKind.TOPIC),
        "TopicAdmin/CreateTopic": MethodRight(Action.CREATE, ResourceKind.TOPIC, note="with a schema, alter too"),
        "TopicAdmin/CreatePartitionedTopic": MethodRight(
            Action.CREATE, ResourceKind.TOPIC, note="with a schema, alter too"
        ),
        "TopicAdmin/DeleteTopic": MethodRight(
            Action.DELETE, ResourceKind.TOPIC, note="table-write where its policy purges the table"
        ),
        "TopicAdmin/UnloadTopic": _UNIMPLEMENTED,
        "TopicAdmin/DescribeTopic": _DESCRIBE_TOPIC,
        "TopicAdmin/ListSubscriptions": _DESCRIBE_TOPIC,
        "TopicAdmin/Unsubscribe": _ALTER_SUBSCRIPTION,
        "TopicAdmin/SetSubscriptionFailurePolicy": _ALTER_SUBSCRIPTION,
        "TopicAdmin/GetSubscriptionFailurePolicy": MethodRight(Action.DESCRIBE, ResourceKind.SUBSCRIPTION),
        "TopicAdmin/SetSubscriptionDispatchConfig": _ALTER_SUBSCRIPTION,
        "TopicAdmin/GetSubscriptionDispatchConfig": MethodRight(Action.DESCRIBE, ResourceKind.SUBSCRIPTION),
        "SecurityAdmin/CreateRole": _ADMIN,
        "SecurityAdmin/GetRole": _ADMIN,
        "SecurityAdmin/ListRoles": _ADMIN,
        "SecurityAdmin/DeleteRole": _ADMIN,
        "SecurityAdmin/CreateBinding": _ADMIN,
        "SecurityAdmin/GetBinding": _ADMIN,
        "SecurityAdmin/ListBindings": _ADMIN,
        "SecurityAdmin/DeleteBinding": _ADMIN,
        "SecurityAdmin/ListAllBindings": _ADMIN,
    }.items()
})  # fmt: skip

METHOD_RIGHTS: Final[Mapping[str, MethodRight]] = MappingProxyType(
    {**CLIENT_METHODS, **SCHEMA_METHODS, **ADMIN_METHODS}
)
