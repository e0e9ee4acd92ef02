"""The inputs and outputs of tasks, encoded as bytes: Spark carries them between processes.

ReadJob     a task of the first stage: the ranges of one bundle
WriteJob    a task of the second stage: the topics of one writer
Handed      from the first stage to the second: the sections of one range for the topics of one writer
"""

from __future__ import annotations

from typing import Final

import msgspec

from icestream.model.task_messages import TaskError, TopicTaskResult
from icestream.pipeline.round_plan import LogRange, LogSource, RoundPlan, TableTarget, TopicPlan


class TopicJob(msgspec.Struct, frozen=True):
    """One topic of a task: what to write, and where."""

    plan: TopicPlan
    target: TableTarget


class ReadJob(msgspec.Struct, frozen=True):
    """The input of a task of the first stage."""

    source: LogSource
    ranges: list[LogRange]
    topics: list[TopicJob]


class WriteJob(msgspec.Struct, frozen=True):
    """The input of a task of the second stage."""

    topics: list[TopicJob]


class Handed(msgspec.Struct, frozen=True):
    """Rows on their way from the first stage to the second."""

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
    """Returns a job for each bundle."""
    topics = {topic.topic_id: TopicJob(topic, plan.targets[topic.topic_id]) for topic in plan.topics}
    jobs = []
    for bundle in range(plan.bundles):
        ranges = [log_range for log_range in plan.ranges if log_range.bundle == bundle]
        topic_ids = sorted({offsets.topic_id for log_range in ranges for offsets in log_range.offsets})
        jobs.append(ReadJob(plan.source, ranges, [topics[topic_id] for topic_id in topic_ids]))
    return jobs


def write_jobs(plan: RoundPlan) -> list[WriteJob]:
    """Returns a job for each writer."""
    return [
        WriteJob([TopicJob(topic, plan.targets[topic.topic_id]) for topic in plan.topics if topic.writer == writer])
        for writer in range(plan.writers)
    ]
