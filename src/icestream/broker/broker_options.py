"""The settings of the broker, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from icestream import limits
from icestream.model.topic_policies import PolicyValues

# Without a pipeline nothing commits the uncommitted messages of a deleted topic: they can only be discarded.
POLICY_DEFAULTS: Final = PolicyValues(deleted_table="keep", deleted_rest="discard")


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What the broker needs of the settings. `processes/node` makes it: the broker does not import the settings."""

    node: str = "icestream"
    address: str = "127.0.0.1:6650"
    auto_create_topics: bool = True
    cursor_flush_ms: int = limits.CURSOR_FLUSH_MS_DEFAULT
    unacked_max: int = limits.UNACKED_MAX_DEFAULT
    policy_defaults: PolicyValues = (
        POLICY_DEFAULTS  # what applies where neither a topic nor its namespace sets a policy
    )
    undelete_grace_ms: int = limits.UNDELETE_GRACE_MS_DEFAULT
    has_own_catalog: bool = True  # tables of deleted topics can be dropped
