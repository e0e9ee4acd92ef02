"""The policies of topics: each is declared once, as a field of PolicyValues.

Records in the metadata store, native calls, the HTTP API and its OpenAPI, the command line, Danube's namespace policies
and the table in docs/api.md follow from a declaration; tests/contract/test_declared_policies.py looks for every policy
in each of them. What remains for a new policy is the code on which it acts.

Three rules hold for every policy:
- A topic or its namespace sets it. None on a topic inherits the namespace's value; where neither sets it,
  `TopicPolicy.unset` says what applies.
- It can be changed while the broker runs; `TopicPolicy.applies` says from when on the change applies.
- A number is not negative, and 0 means unlimited unless `TopicPolicy.check` refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, get_args

import msgspec

from icestream import errors, limits
from icestream.model import table_layout, topic_deletion_policy
from icestream.model.field_metadata import Length, NumberBounds, field_hints
from icestream.model.topic_deletion_policy import DeletedRestPolicy, DeletedTablePolicy

Count = Annotated[int, NumberBounds(0, limits.OFFSET_MAX)]
UNLIMITED: Final = "unlimited"
Word = Annotated[str, Length(1, limits.NAME_BYTES_MAX)]


class Applies(StrEnum):
    """From when on a changed policy applies."""

    AT_ONCE = "at once"
    NEXT_RETENTION_STEP = "within a minute"
    NEXT_COMMIT = "with the next commit; existing files are not rewritten"
    NEXT_ROUND = "with the next commit"
    NEXT_COMPACTION = "to files that compaction writes from now on"
    AT_DELETION = "when the topic is deleted"


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """The declaration of a policy, beside the type of its field."""

    description: str
    unset: str = UNLIMITED  # what applies where neither the topic nor its namespace sets the policy
    applies: Applies = Applies.AT_ONCE
    check: Callable[[Any], object] | None = None  # raises InvalidInput for a value that its type alone allows
    words: type[StrEnum] | None = None  # the allowed values, where they can be enumerated
    setting: str = ""  # the key of the setting that applies where the policy is unset
    danube: str = ""  # its key in Danube's namespace policies; empty: Danube has no such policy
    is_table_layout: bool = False  # handed to the pipeline, which writes it into the table's properties
    accepts_none: bool = False  # `none` is a value of it: on the command line only an empty text unsets it


def _check_upper_bound(value: int) -> None:
    """Raises InvalidInput for 0: one consumer that never acks would fill the disk."""
    if value == 0:
        raise errors.InvalidInput(
            "unconsumed messages need an upper bound: 0 is none", hint="unset the policy to ignore acks"
        )


class PolicyValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """null: inherited from the namespace, else unlimited or the current setting of the table. 0: unlimited."""

    max_producers: Annotated[
        Count | None, TopicPolicy("Connected producers of the topic.", danube="max_producers_per_topic")
    ] = None
    max_subscriptions: Annotated[
        Count | None, TopicPolicy("Subscriptions of the topic.", danube="max_subscriptions_per_topic")
    ] = None
    max_consumers_per_topic: Annotated[
        Count | None, TopicPolicy("Connected consumers of the topic.", danube="max_consumers_per_topic")
    ] = None
    max_consumers_per_subscription: Annotated[
        Count | None,
        TopicPolicy("Connected consumers of each subscription.", danube="max_consumers_per_subscription"),
    ] = None
    max_publish_rate: Annotated[
        Count | None, TopicPolicy("Published messages per second.", danube="max_publish_rate")
    ] = None
    max_dispatch_rate: Annotated[
        Count | None,
        TopicPolicy("Delivered messages per second and subscription.", danube="max_subscription_dispatch_rate"),
    ] = None
    max_message_bytes: Annotated[
        Count | None,
        TopicPolicy("Bytes of a message: key, payload and headers together.", danube="max_message_size"),
    ] = None
    retention_bytes: Annotated[
        Count | None,
        TopicPolicy(
            "Bytes that the topic keeps, in the log (uncommitted messages) and in its table (data files); the oldest "
            "messages beyond are removed, in whole files.",
            applies=Applies.NEXT_RETENTION_STEP,
        ),
    ] = None
    retention_messages: Annotated[
        Count | None,
        TopicPolicy(
            "Messages that the topic keeps, in the log and in its table; the oldest beyond are removed, in whole "
            "files.",
            applies=Applies.NEXT_RETENTION_STEP,
        ),
    ] = None
    retention_ms: Annotated[
        Count | None,
        TopicPolicy(
            "Age of messages in milliseconds; older ones are removed from the log and from its table, in whole files.",
            applies=Applies.NEXT_RETENTION_STEP,
        ),
    ] = None
    retention_until_consumed_ms: Annotated[
        Count | None,
        TopicPolicy(
            "Age in milliseconds up to which messages are kept that a subscription or a durable MQTT session has not "
            "acked, beyond the other limits of retention. Without other limits a message goes once all have acked it.",
            unset="acks do not matter",
            applies=Applies.NEXT_RETENTION_STEP,
            check=_check_upper_bound,
        ),
    ] = None
    retention_until_consumed_bytes: Annotated[
        Count | None,
        TopicPolicy(
            "The same with a bound in bytes: of the log and of the table. With both, the first bound that is reached "
            "counts.",
            unset="acks do not matter",
            applies=Applies.NEXT_RETENTION_STEP,
            check=_check_upper_bound,
        ),
    ] = None
    partitioning: Annotated[
        Word | None,
        TopicPolicy(
            "Partitioning of its table: none; hour, day or month of append_time; key, or bucket[16] of the key; auto: "
            "none, then day or hour once the table is large.",
            unset="as the table is; a new table has no partitions",
            applies=Applies.NEXT_COMMIT,
            check=table_layout.check_partitioning,
            is_table_layout=True,
            accepts_none=True,
        ),
    ] = None
    compression: Annotated[
        Word | None,
        TopicPolicy(
            "Compression of its data files: zstd, gzip, snappy, lz4 or uncompressed; zstd:9 sets a level.",
            unset="as the table is; a new table has zstd",
            applies=Applies.NEXT_COMMIT,
            check=table_layout.check_compression,
            is_table_layout=True,
        ),
    ] = None
    target_file_bytes: Annotated[
        Count | None,
        TopicPolicy(
            f"Target size of its data files, {limits.TARGET_FILE_BYTES_MIN} to {limits.TARGET_FILE_BYTES_MAX} bytes.",
            unset="as the table is; a new table has 512 MiB",
            applies=Applies.NEXT_COMMIT,
            check=table_layout.check_target_file_bytes,
            is_table_layout=True,
        ),
    ] = None
    mqtt_columns: Annotated[
        Word | None,
        TopicPolicy(
            "Whether its table has columns for MQTT topics, and clusters its files by them: on or off. Routes set it.",
            unset="off",
            applies=Applies.NEXT_COMMIT,
            check=table_layout.check_mqtt_columns,
            words=table_layout.MqttColumnsPolicy,
            is_table_layout=True,
        ),
    ] = None
    compaction: Annotated[
        Word | None,
        TopicPolicy(
            "Whether small files of its table are merged into larger ones: on or off.",
            unset="setting pipeline.compaction.enabled",
            applies=Applies.NEXT_ROUND,
            check=table_layout.check_compaction,
            words=table_layout.CompactionPolicy,
            is_table_layout=True,
        ),
    ] = None
    clustering: Annotated[
        Word | None,
        TopicPolicy(
            "How compaction orders rows in the files of its table: offset; one to four columns such as "
            "key,publish_time; or zorder(key,publish_time).",
            unset="offset; with mqtt_columns by stream",
            applies=Applies.NEXT_COMPACTION,
            check=table_layout.parse_clustering,
            is_table_layout=True,
        ),
    ] = None
    deleted_table: Annotated[
        Word | None,
        TopicPolicy(
            "What happens to its table when the topic is deleted: keep, drop (its files are kept) or purge.",
            unset="setting broker.deleted_table",
            applies=Applies.AT_DELETION,
            check=topic_deletion_policy.parse_deleted_table,
            words=DeletedTablePolicy,
            setting="broker.deleted_table",
        ),
    ] = None
    deleted_rest: Annotated[
        Word | None,
        TopicPolicy(
            "What happens to its uncommitted messages when the topic is deleted: commit or discard.",
            unset="setting broker.deleted_rest",
            applies=Applies.AT_DELETION,
            check=topic_deletion_policy.parse_deleted_rest,
            words=DeletedRestPolicy,
            setting="broker.deleted_rest",
        ),
    ] = None

    def __post_init__(self) -> None:
        for name, policy in POLICIES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, int) and value < 0:
                raise errors.InvalidInput(f"{name} {value} is below 0", hint="0 means no bound")
            if policy.check is not None:
                policy.check(value)

    def over(self, other: PolicyValues) -> PolicyValues:
        """These policies, with the other's values where these are None."""
        own = policies_document(self)
        return PolicyValues(**{name: getattr(other, name) if value is None else value for name, value in own.items()})

    def changed(self, changes: Mapping[str, object]) -> PolicyValues:
        """A copy with some values replaced; None unsets a policy. Raises InvalidInput."""
        try:
            return msgspec.convert({**policies_document(self), **changes}, PolicyValues)
        except msgspec.ValidationError as error:
            raise errors.InvalidInput(f"invalid policies: {error}", hint="docs/api.md lists them") from None

    @property
    def table_layout(self) -> dict[str, str]:
        """The layout policies that are set, as text: the form in which the pipeline gets them."""
        values = {name: getattr(self, name) for name, policy in POLICIES.items() if policy.is_table_layout}
        return {name: str(value) for name, value in values.items() if value is not None}


POLICIES: Final[dict[str, TopicPolicy]] = {
    name: next(item for item in get_args(hint) if isinstance(item, TopicPolicy))
    for name, hint in field_hints(PolicyValues).items()
}


def policies_document(policies: PolicyValues) -> dict[str, Any]:
    """All policies by name, in the order of their declaration; None where a policy is not set."""
    return {name: getattr(policies, name) for name in PolicyValues.__struct_fields__}
