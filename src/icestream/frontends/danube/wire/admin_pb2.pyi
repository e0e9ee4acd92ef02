from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DispatchStrategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NonReliable: _ClassVar[DispatchStrategy]
    Reliable: _ClassVar[DispatchStrategy]

class BackoffStrategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    Fixed: _ClassVar[BackoffStrategy]
    Exponential: _ClassVar[BackoffStrategy]

class PoisonPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DeadLetter: _ClassVar[PoisonPolicy]
    Block: _ClassVar[PoisonPolicy]
    Drop: _ClassVar[PoisonPolicy]
NonReliable: DispatchStrategy
Reliable: DispatchStrategy
Fixed: BackoffStrategy
Exponential: BackoffStrategy
DeadLetter: PoisonPolicy
Block: PoisonPolicy
Drop: PoisonPolicy

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Done(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class BrokerInfo(_message.Message):
    __slots__ = ("broker_id", "broker_addr", "broker_role", "admin_addr", "metrics_addr", "broker_status")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_ADDR_FIELD_NUMBER: _ClassVar[int]
    BROKER_ROLE_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ADDR_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDR_FIELD_NUMBER: _ClassVar[int]
    BROKER_STATUS_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    broker_addr: str
    broker_role: str
    admin_addr: str
    metrics_addr: str
    broker_status: str
    def __init__(self, broker_id: _Optional[str] = ..., broker_addr: _Optional[str] = ..., broker_role: _Optional[str] = ..., admin_addr: _Optional[str] = ..., metrics_addr: _Optional[str] = ..., broker_status: _Optional[str] = ...) -> None: ...

class BrokerListResponse(_message.Message):
    __slots__ = ("brokers",)
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerInfo]
    def __init__(self, brokers: _Optional[_Iterable[_Union[BrokerInfo, _Mapping]]] = ...) -> None: ...

class BrokerResponse(_message.Message):
    __slots__ = ("leader",)
    LEADER_FIELD_NUMBER: _ClassVar[int]
    leader: str
    def __init__(self, leader: _Optional[str] = ...) -> None: ...

class BrokerRequest(_message.Message):
    __slots__ = ("broker_id",)
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    broker_id: str
    def __init__(self, broker_id: _Optional[str] = ...) -> None: ...

class NamespaceRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class NamespaceListResponse(_message.Message):
    __slots__ = ("namespaces",)
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespaces: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicListResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class PolicyResponse(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: str
    def __init__(self, policies: _Optional[str] = ...) -> None: ...

class TopicInfo(_message.Message):
    __slots__ = ("name", "broker_id", "delivery")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    name: str
    broker_id: str
    delivery: str
    def __init__(self, name: _Optional[str] = ..., broker_id: _Optional[str] = ..., delivery: _Optional[str] = ...) -> None: ...

class TopicInfoListResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ...) -> None: ...

class NewTopicRequest(_message.Message):
    __slots__ = ("name", "schema_subject", "dispatch_strategy")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    name: str
    schema_subject: str
    dispatch_strategy: DispatchStrategy
    def __init__(self, name: _Optional[str] = ..., schema_subject: _Optional[str] = ..., dispatch_strategy: _Optional[_Union[DispatchStrategy, str]] = ...) -> None: ...

class PartitionedTopicRequest(_message.Message):
    __slots__ = ("base_name", "partitions", "schema_subject", "dispatch_strategy")
    BASE_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    base_name: str
    partitions: int
    schema_subject: str
    dispatch_strategy: DispatchStrategy
    def __init__(self, base_name: _Optional[str] = ..., partitions: _Optional[int] = ..., schema_subject: _Optional[str] = ..., dispatch_strategy: _Optional[_Union[DispatchStrategy, str]] = ...) -> None: ...

class TopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("name", "subscriptions", "broker_id", "delivery", "schema_subject", "schema_id", "schema_version", "schema_type", "compatibility_mode")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_TYPE_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_MODE_FIELD_NUMBER: _ClassVar[int]
    name: str
    subscriptions: _containers.RepeatedScalarFieldContainer[str]
    broker_id: str
    delivery: str
    schema_subject: str
    schema_id: int
    schema_version: int
    schema_type: str
    compatibility_mode: str
    def __init__(self, name: _Optional[str] = ..., subscriptions: _Optional[_Iterable[str]] = ..., broker_id: _Optional[str] = ..., delivery: _Optional[str] = ..., schema_subject: _Optional[str] = ..., schema_id: _Optional[int] = ..., schema_version: _Optional[int] = ..., schema_type: _Optional[str] = ..., compatibility_mode: _Optional[str] = ...) -> None: ...

class SubscriptionRequest(_message.Message):
    __slots__ = ("topic", "subscription")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...

class SubscriptionListResponse(_message.Message):
    __slots__ = ("subscriptions",)
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subscriptions: _Optional[_Iterable[str]] = ...) -> None: ...

class FailurePolicy(_message.Message):
    __slots__ = ("max_redelivery_count", "ack_timeout_ms", "base_redelivery_delay_ms", "max_redelivery_delay_ms", "backoff_strategy", "dead_letter_topic", "poison_policy")
    MAX_REDELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACK_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    BASE_REDELIVERY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_REDELIVERY_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    POISON_POLICY_FIELD_NUMBER: _ClassVar[int]
    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: BackoffStrategy
    dead_letter_topic: str
    poison_policy: PoisonPolicy
    def __init__(self, max_redelivery_count: _Optional[int] = ..., ack_timeout_ms: _Optional[int] = ..., base_redelivery_delay_ms: _Optional[int] = ..., max_redelivery_delay_ms: _Optional[int] = ..., backoff_strategy: _Optional[_Union[BackoffStrategy, str]] = ..., dead_letter_topic: _Optional[str] = ..., poison_policy: _Optional[_Union[PoisonPolicy, str]] = ...) -> None: ...

class SetFailurePolicyRequest(_message.Message):
    __slots__ = ("topic", "subscription", "failure_policy")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FAILURE_POLICY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    failure_policy: FailurePolicy
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., failure_policy: _Optional[_Union[FailurePolicy, _Mapping]] = ...) -> None: ...

class GetFailurePolicyResponse(_message.Message):
    __slots__ = ("failure_policy", "subscription_type")
    FAILURE_POLICY_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    failure_policy: FailurePolicy
    subscription_type: int
    def __init__(self, failure_policy: _Optional[_Union[FailurePolicy, _Mapping]] = ..., subscription_type: _Optional[int] = ...) -> None: ...

class DispatchConfig(_message.Message):
    __slots__ = ("max_unacked_messages",)
    MAX_UNACKED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    max_unacked_messages: int
    def __init__(self, max_unacked_messages: _Optional[int] = ...) -> None: ...

class SetDispatchConfigRequest(_message.Message):
    __slots__ = ("topic", "subscription", "dispatch_config")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_CONFIG_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    dispatch_config: DispatchConfig
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., dispatch_config: _Optional[_Union[DispatchConfig, _Mapping]] = ...) -> None: ...

class GetDispatchConfigResponse(_message.Message):
    __slots__ = ("dispatch_config",)
    DISPATCH_CONFIG_FIELD_NUMBER: _ClassVar[int]
    dispatch_config: DispatchConfig
    def __init__(self, dispatch_config: _Optional[_Union[DispatchConfig, _Mapping]] = ...) -> None: ...

class RoleDefinition(_message.Message):
    __slots__ = ("name", "permissions", "system")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PERMISSIONS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    permissions: _containers.RepeatedScalarFieldContainer[str]
    system: bool
    def __init__(self, name: _Optional[str] = ..., permissions: _Optional[_Iterable[str]] = ..., system: _Optional[bool] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: RoleDefinition
    def __init__(self, role: _Optional[_Union[RoleDefinition, _Mapping]] = ...) -> None: ...

class RoleRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RoleListResponse(_message.Message):
    __slots__ = ("roles",)
    ROLES_FIELD_NUMBER: _ClassVar[int]
    roles: _containers.RepeatedCompositeFieldContainer[RoleDefinition]
    def __init__(self, roles: _Optional[_Iterable[_Union[RoleDefinition, _Mapping]]] = ...) -> None: ...

class BindingDefinition(_message.Message):
    __slots__ = ("id", "principal_type", "principal_name", "role_names", "scope", "resource_name")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_NAMES_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    id: str
    principal_type: str
    principal_name: str
    role_names: _containers.RepeatedScalarFieldContainer[str]
    scope: str
    resource_name: str
    def __init__(self, id: _Optional[str] = ..., principal_type: _Optional[str] = ..., principal_name: _Optional[str] = ..., role_names: _Optional[_Iterable[str]] = ..., scope: _Optional[str] = ..., resource_name: _Optional[str] = ...) -> None: ...

class Binding(_message.Message):
    __slots__ = ("binding",)
    BINDING_FIELD_NUMBER: _ClassVar[int]
    binding: BindingDefinition
    def __init__(self, binding: _Optional[_Union[BindingDefinition, _Mapping]] = ...) -> None: ...

class BindingRequest(_message.Message):
    __slots__ = ("scope", "resource_name", "binding_id")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_NAME_FIELD_NUMBER: _ClassVar[int]
    BINDING_ID_FIELD_NUMBER: _ClassVar[int]
    scope: str
    resource_name: str
    binding_id: str
    def __init__(self, scope: _Optional[str] = ..., resource_name: _Optional[str] = ..., binding_id: _Optional[str] = ...) -> None: ...

class BindingListResponse(_message.Message):
    __slots__ = ("bindings",)
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    bindings: _containers.RepeatedCompositeFieldContainer[BindingDefinition]
    def __init__(self, bindings: _Optional[_Iterable[_Union[BindingDefinition, _Mapping]]] = ...) -> None: ...
