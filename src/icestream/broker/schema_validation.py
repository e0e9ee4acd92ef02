"""Whether the messages of a block fit the schema of their topic, and what is done about those that do not."""

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


def validate_payloads(registry: SchemaRegistry, topic: TopicName, block: bytes) -> None:
    """Raises SchemaViolated where the topic enforces its schema: then nothing of the block is stored."""
    found = Block(block)
    columns = [found.values(one) for one in (envelope.SCHEMA_ID, envelope.SCHEMA_VERSION, envelope.PAYLOAD)]
    for schema_id, version, payload in zip(*columns, strict=True):
        wrong = registry.violation(
            topic,
            schema_id if isinstance(schema_id, int) else None,
            version if isinstance(version, int) else None,
            payload if isinstance(payload, bytes) else b"",
        )
        if wrong is None:
            continue
        policy, why = wrong
        metrics.SCHEMA_VIOLATIONS.labels(policy.value).inc()
        if policy is ValidationPolicy.ENFORCE:
            raise errors.SchemaViolated(
                f"a message does not fit the schema of topic {topic}: {why}", hint="send what its schema describes"
            )
        _log.warning("a message does not fit the schema of its topic", topic=str(topic), reason=why)
