"""The functions that Spark calls, known to the workers by name. Everything that crosses is bytes.

first stage    (ReadJob, [(writer, WriteJob)])  ->  (writer, tagged bytes)
second stage   what was sent to one writer      ->  TopicWritten
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from icestream.pipeline.task import job as jobs
from icestream.pipeline.task.task_run import WRITTEN, read_bundle, write_handed

Given = tuple[bytes, list[tuple[int, bytes]]]
_JOB: Final = b"J"
_HANDED: Final = b"H"
_WRITTEN: Final = b"W"


def read_only(given: Iterable[Given]) -> Iterator[bytes]:
    """A round in which nothing is gathered is one stage."""
    for reading, _ in given:
        for _, told in read_bundle(reading):
            yield told


def read(given: Iterable[Given]) -> Iterator[tuple[int, bytes]]:
    for reading, writing in given:
        for writer, job in writing:
            yield writer, _JOB + job
        for writer, told in read_bundle(reading):
            yield (0, _WRITTEN + told) if writer == WRITTEN else (writer, _HANDED + told)


def place_of(writer: int) -> int:
    return writer


def write(sent: Iterable[tuple[int, bytes]]) -> Iterator[bytes]:
    job = b""
    handed: list[bytes] = []
    for _, data in sent:
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
