"""Validates the messages of a block against the schema of their topic, and applies the topic's validation policy."""

from __future__ import annotations

from icestream import errors
from icestream.broker.schema_registry import SchemaRegistry
from icestream.model import envelope
from icestream.model.block import Block
from icestream.model.topic_name import TopicName
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.schema.kinds import ValidationPolicy

_log = get_logger("schemas")


def validate_payloads(schemas: SchemaRegistry, topic: TopicName, block: bytes) -> None:
    """Raises SchemaViolated if the topic enforces its schema; otherwise violations are logged and counted."""
    decoded = Block(block)
    columns = [decoded.values(column) for column in (envelope.SCHEMA_ID, envelope.SCHEMA_VERSION, envelope.PAYLOAD)]
    for schema_id, version, payload in zip(*columns, strict=True):
        violation = schemas.find_violation(
            topic,
            schema_id if isinstance(schema_id, int) else None,
            version if isinstance(version, int) else None,
            payload if isinstance(payload, bytes) else b"",
        )
        if violation is None:
            continue
        policy, reason = violation
        metrics.SCHEMA_VIOLATIONS.labels(policy.value).inc()
        if policy is ValidationPolicy.ENFORCE:
            raise errors.SchemaViolated(
                f"message violates the schema of topic {topic}: {reason}", hint="send messages that match the schema"
            )
        _log.warning("message violates the schema of its topic", topic=str(topic), reason=reason)
