"""The topics that the metadata store of a backup has (broker/records.py), as far as a backup needs them. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from icestream import errors
from icestream.metadata.state_machine import StateMachine

PREFIX: Final = "/topics/"


class RecordedTopic(msgspec.Struct, frozen=True):
    """A topic. `node`: the name of the node that serves it."""

    id: int
    shards: int
    node: str
    name: str = ""


def recorded_topics(state: StateMachine) -> dict[int, RecordedTopic]:
    """The topics by their ids. Raises MetadataDamaged for a record that cannot be read."""
    topics = {}
    for key in state.keys(PREFIX, len(state.entries)):
        try:
            topic = msgspec.json.decode(state.entries[key].value, type=RecordedTopic)
        except msgspec.MsgspecError as error:
            raise errors.MetadataDamaged(f"the record {key} cannot be read: {error}") from None
        topics[topic.id] = msgspec.structs.replace(topic, name=f"/{key.removeprefix(PREFIX)}")
    return topics
