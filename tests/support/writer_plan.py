"""What a writer process is told. Imports nothing of icestream: the process first decides about its native part."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class WriterProducer:
    """A producer that numbers its messages. It goes on with batch `next_batch`, the first that was not acked."""

    id: int
    topic: int
    shard: int
    epoch: int = 1
    next_batch: int = 0
    new_epoch: bool = False  # it connects anew: it asks what is stored instead of sending it again

    @property
    def name(self) -> str:
        return f"n{self.id}"


@dataclass(slots=True)
class WriterPlan:
    directory: str
    mode: str = "always"
    native: bool = True
    seed: int = 0
    start: int = 1  # counts the processes of a run; part of the names of unnumbered writers
    work: str = "storm"  # storm: everything at once; fill: until refused; rest: a few messages; look: nothing
    topics: int = 2
    shards: int = 2
    options: dict[str, int] = field(default_factory=dict)  # of LogOptions
    producers: list[WriterProducer] = field(default_factory=list)
    floors: dict[str, int] = field(default_factory=dict)  # "topic/shard": where the run's floor stands
    disk_fails: bool = False  # whether a full or failing disk is an answer, or the end
    tell_positions: bool = False  # whether recovery is told the floors, as a metadata store would

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WriterPlan:
        fields: dict[str, Any] = json.loads(text)
        fields["producers"] = [WriterProducer(**producer) for producer in fields["producers"]]
        return cls(**fields)
