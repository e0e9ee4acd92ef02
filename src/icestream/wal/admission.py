"""Admission: whether an append is accepted, and how long its producer is slowed down. Pure.

It is decided before any offset is assigned, so a refused append leaves no trace (hazard 16).

in flight      bytes between assignment and ack: at the bound the caller waits (it stops reading its socket)
node quota     bytes of the log on disk          from 80 % on each append waits, up to 250 ms at 100 %;
topic quota    live bytes of one topic           at 100 % it is refused, and nothing is stored
"""

from __future__ import annotations

from dataclasses import dataclass, field

from icestream import errors, limits


@dataclass(frozen=True, slots=True)
class Quota:
    """The byte limits of node and topic, and the thresholds from which on appends are slowed down."""

    node_bytes: int
    topic_bytes: int

    slow_node_bytes: int = field(init=False)
    slow_topic_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Computes the thresholds once, because every append compares with them."""
        object.__setattr__(self, "slow_node_bytes", int(self.node_bytes * limits.QUOTA_SLOW_SHARE))
        object.__setattr__(self, "slow_topic_bytes", int(self.topic_bytes * limits.QUOTA_SLOW_SHARE))


def quota_of(node_bytes: int | None, topic_bytes: int | None, free_bytes: int, used_bytes: int) -> Quota:
    """The quotas as configured; a missing one is derived from the disk space available to the log."""
    node = node_bytes or default_quota(free_bytes, used_bytes)
    return Quota(node, topic_bytes or int(node * limits.TOPIC_QUOTA_SHARE))


def default_quota(free_bytes: int, used_bytes: int) -> int:
    """Half of what would be free without the log, so that the default is the same at every start."""
    return min((free_bytes + used_bytes) // 2, limits.NODE_QUOTA_BYTES_MAX_DEFAULT)


def admit(quota: Quota, node_used: int, topic_used: int, size: int, topic_name: str) -> float:
    """Seconds to wait before the append. Raises Refused at a quota."""
    if node_used + size > quota.node_bytes:
        raise errors.NodeQuotaReached(
            f"the log holds {node_used} of {quota.node_bytes} bytes",
            hint="it drains when the pipeline commits; or raise storage.iceberg_config.wal.quota",
        )
    if topic_used + size > quota.topic_bytes:
        raise errors.TopicQuotaReached(
            f"topic {topic_name} holds {topic_used} of {quota.topic_bytes} bytes in the log",
            hint="it drains when its table commits; or raise storage.iceberg_config.wal.topic_quota",
        )
    return pause_seconds(quota, node_used + size, topic_used + size)


def pause_seconds(quota: Quota, node_used: int, topic_used: int) -> float:
    """How long an append is slowed down: 0 far from both quotas, at most QUOTA_PAUSE_SECONDS_MAX."""
    node, topic = min(node_used, quota.node_bytes), min(topic_used, quota.topic_bytes)
    return max(_pause(node, quota.node_bytes), _pause(topic, quota.topic_bytes))


def _pause(used: int, quota: int) -> float:
    """0 up to the slow share, then rising with the square of the rest, so that backpressure sets in gently."""
    slow = quota * limits.QUOTA_SLOW_SHARE
    if used <= slow:
        return 0.0
    share = (used - slow) / (quota - slow)
    return limits.QUOTA_PAUSE_SECONDS_MAX * share * share
