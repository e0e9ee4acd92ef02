"""The functions that Spark calls, known to the workers by name. Everything that crosses processes is bytes.

first stage    (ReadJob, [(writer, WriteJob)])  ->  (writer, tagged bytes)
second stage   what was sent to one writer      ->  TopicTaskResult
compaction     GroupJob                         ->  GroupResult
erasure        SearchJob                        ->  SearchResult
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from icestream.pipeline.compaction.group_rewrite import rewrite_group
from icestream.pipeline.erasure.erase_task import search_file
from icestream.pipeline.task import task_jobs as jobs
from icestream.pipeline.task.task_run import WRITTEN, fresh_name, open_store, read_bundle, write_handed

Input = tuple[bytes, list[tuple[int, bytes]]]
_JOB: Final = b"J"
_HANDED: Final = b"H"
_WRITTEN: Final = b"W"


def read_only(inputs: Iterable[Input]) -> Iterator[bytes]:
    """Yields the results of the only stage of a round in which no topic is gathered."""
    for read_job, _ in inputs:
        for _, result in read_bundle(read_job):
            yield result


def read(inputs: Iterable[Input]) -> Iterator[tuple[int, bytes]]:
    for read_job, write_jobs in inputs:
        for writer, job in write_jobs:
            yield writer, _JOB + job
        for writer, result in read_bundle(read_job):
            yield (0, _WRITTEN + result) if writer == WRITTEN else (writer, _HANDED + result)


def rewrite(group_jobs: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the results of the groups of one task of a compaction."""
    for job in group_jobs:
        yield rewrite_group(job, open_store, fresh_name)


def search(search_jobs: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the results of the files of one task of an erasure."""
    for job in search_jobs:
        yield search_file(job, open_store, fresh_name)


def partition_of(writer: int) -> int:
    return writer


def write(messages: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    """The second stage: writes the gathered topics of one writer; results of the first stage pass through."""
    job = b""
    handed: list[bytes] = []
    for _, data in messages:
        match data[:1]:
            case b"J":
                job = data[1:]
            case b"H":
                handed.append(data[1:])
            case _:
                yield data[1:]
    if job:
        for written in write_handed(job, handed):
            yield jobs.encode(written)
