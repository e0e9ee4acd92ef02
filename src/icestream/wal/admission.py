"""Whether a batch may come in, and how long its producer waits first. Before any offset is given (hazard 16). Pure.

in flight      bytes between assignment and ack: at the bound the caller waits (it stops reading its socket)
node quota     bytes of the log on disk          from 80 % each append waits, up to 250 ms at 100 %;
topic quota    live bytes of one topic           at 100 % it is refused, and nothing is stored
"""

from __future__ import annotations

from dataclasses import dataclass, field

from icestream import errors, limits


@dataclass(frozen=True, slots=True)
class Quota:
    node_bytes: int
    topic_bytes: int

    slow_node_bytes: int = field(init=False)
    slow_topic_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Worked out once: every append looks at them."""
        object.__setattr__(self, "slow_node_bytes", int(self.node_bytes * limits.QUOTA_SLOW_SHARE))
        object.__setattr__(self, "slow_topic_bytes", int(self.topic_bytes * limits.QUOTA_SLOW_SHARE))


def quota_of(node_bytes: int | None, topic_bytes: int | None, free_bytes: int, used_bytes: int) -> Quota:
    """As it is set, and where it is not, by the room that the log finds."""
    node = node_bytes or default_quota(free_bytes, used_bytes)
    return Quota(node, topic_bytes or int(node * limits.TOPIC_QUOTA_SHARE))


def default_quota(free_bytes: int, used_bytes: int) -> int:
    """Half of what was free before the log took its part, so that the number stays the same from start to start."""
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
    """0 far from a quota; at most the longest pause."""
    node, topic = min(node_used, quota.node_bytes), min(topic_used, quota.topic_bytes)
    return max(_pause(node, quota.node_bytes), _pause(topic, quota.topic_bytes))


def _pause(used: int, quota: int) -> float:
    """0 up to the slow share, then rising with the square of what is left, so that the pressure comes gently."""
    slow = quota * limits.QUOTA_SLOW_SHARE
    if used <= slow:
        return 0.0
    share = (used - slow) / (quota - slow)
    return limits.QUOTA_PAUSE_SECONDS_MAX * share * share
