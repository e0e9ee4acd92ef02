"""The failure policy of a subscription, as Danube's admin services write it."""

from __future__ import annotations

from typing import Final

from icestream import errors
from icestream.frontends.danube.wire import admin_pb2 as pb
from icestream.model.subscription import Backoff, FailurePolicy, Poison

BACKOFF: Final = {pb.Fixed: Backoff.FIXED, pb.Exponential: Backoff.EXPONENTIAL}
POISON: Final = {pb.DeadLetter: Poison.DEAD_LETTER, pb.Block: Poison.BLOCK, pb.Drop: Poison.DROP}
_BACKOFF_NUMBERS: Final = {found: number for number, found in BACKOFF.items()}
_POISON_NUMBERS: Final = {found: number for number, found in POISON.items()}


def policy_of(asked: pb.FailurePolicy) -> FailurePolicy:
    backoff, poison = BACKOFF.get(asked.backoff_strategy), POISON.get(asked.poison_policy)
    if backoff is None or poison is None:
        raise errors.InvalidInput(
            "a backoff strategy or poison policy that does not exist", hint="backoff is 0 or 1, poison 0 to 2"
        )
    return FailurePolicy(
        asked.max_redelivery_count,
        asked.ack_timeout_ms,
        asked.base_redelivery_delay_ms,
        asked.max_redelivery_delay_ms,
        backoff,
        poison,
        asked.dead_letter_topic if asked.HasField("dead_letter_topic") else None,
    )


def wire_policy(found: FailurePolicy) -> pb.FailurePolicy:
    return pb.FailurePolicy(
        max_redelivery_count=found.max_redelivery_count,
        ack_timeout_ms=found.ack_timeout_ms,
        base_redelivery_delay_ms=found.base_delay_ms,
        max_redelivery_delay_ms=found.max_delay_ms,
        backoff_strategy=_BACKOFF_NUMBERS[found.backoff],
        dead_letter_topic=found.dead_letter_topic,
        poison_policy=_POISON_NUMBERS[found.poison],
    )
