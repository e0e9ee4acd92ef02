"""What one task is given and what it hands on, as bytes: they cross process borders inside of Spark.

ReadJob     a task of the first stage: the ranges of one bundle
WriteJob    a task of the second stage: the topics of one writer
Handed      from the first stage to the second: what one range holds of the topics of one writer
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream.model.task_messages import TaskError, TopicTaskResult
from icestream.pipeline.round_plan import LogRange, LogSource, RoundPlan, TableTarget, TopicPlan


class TopicJob(msgspec.Struct, frozen=True):
    plan: TopicPlan
    target: TableTarget


class ReadJob(msgspec.Struct, frozen=True):
    source: LogSource
    ranges: list[LogRange]
    topics: list[TopicJob]


class WriteJob(msgspec.Struct, frozen=True):
    topics: list[TopicJob]


class Handed(msgspec.Struct, frozen=True):
    writer: int
    range_number: int
    sections: bytes
    errors: dict[int, TaskError]  # by topic


_read_jobs: Final = msgspec.msgpack.Decoder(ReadJob)
_write_jobs: Final = msgspec.msgpack.Decoder(WriteJob)
_handed: Final = msgspec.msgpack.Decoder(Handed)
_written: Final = msgspec.msgpack.Decoder(TopicTaskResult)

encode = msgspec.msgpack.encode
decode_read_job = _read_jobs.decode
decode_write_job = _write_jobs.decode
decode_handed = _handed.decode
decode_written = _written.decode


def read_jobs(plan: RoundPlan) -> list[ReadJob]:
    """One for each bundle."""
    topics = {topic.topic_id: TopicJob(topic, plan.targets[topic.topic_id]) for topic in plan.topics}
    jobs = []
    for bundle in range(plan.bundles):
        ranges = [one for one in plan.ranges if one.bundle == bundle]
        ids = sorted({wanted.topic_id for one in ranges for wanted in one.wanted})
        jobs.append(ReadJob(plan.source, ranges, [topics[number] for number in ids]))
    return jobs


def write_jobs(plan: RoundPlan) -> list[WriteJob]:
    """One for each writer."""
    return [
        WriteJob([TopicJob(one, plan.targets[one.topic_id]) for one in plan.topics if one.writer == writer])
        for writer in range(plan.writers)
    ]
