"""Keeps the failure of one background job from ending the driver for all of them, and backs the job off (ADR 131).

    failure             consequence
    of one table        the job leaves that table alone until its backoff is over, and goes on with the others
    of the job itself   the driver leaves the job alone until its backoff is over; the other jobs run
    LeaseLost           ends the turn: it concerns every job
    IcestreamError      of ingest ends the turn after the plans of the other jobs, and is retried; of every other job it
                        is a failure as above, and StorageUnavailable one of the job, whichever table met it

A failure counts until the job, or its work on that table, succeeds, or is not tried again for JOB_RETRY_SECONDS_MAX
after its backoff: then there is nothing left to do. Failures are in the report of the driver
(`icestream pipeline status`, `lake health`, `lake history`), in the metric `icestream_pipeline_job_failures_total`, and
with their traceback in the log.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from icestream import errors, limits
from icestream.observability import metrics
from icestream.observability.log import get_logger
from icestream.rpc.backoff import backoff_seconds
from icestream.runtime.clock import Clock

_log = get_logger("pipeline")
_WHOLE_JOB = 0  # in place of a topic id, which is never 0


class JobFailure(NamedTuple):
    """The last failure of a job, of one table or as a whole, and how often in a row it failed."""

    job: str
    topic: str  # empty: of the whole job
    error: str
    times: int
    time_ms: int
    retry_at_ns: int  # monotonic clock


class JobGuard:
    """Which jobs and tables are backed off, and why."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[tuple[str, int], JobFailure] = OrderedDict()
        self._unexpected = 0

    def may_run(self, job: str, topic_id: int = _WHOLE_JOB) -> bool:
        """Whether no backoff keeps the job, or its work on the table of a topic, from being tried now."""
        failure = self._failures.get((job, topic_id))
        return failure is None or self._clock.monotonic_ns() >= failure.retry_at_ns

    @contextlib.contextmanager
    def protect(
        self, job: str, topic_id: int = _WHOLE_JOB, topic: str = "", *, is_ingest: bool = False
    ) -> Iterator[None]:
        """Encloses work of a job, on the table of a topic if one is named. A failure ends the enclosed code and is
        recorded; what must end the turn is raised (see the head of the module)."""
        try:
            yield
        except errors.LeaseLost:
            raise
        except errors.IcestreamError as error:
            # Of a table: the others have the same outage, so the whole job waits.
            if is_ingest or (topic_id != _WHOLE_JOB and isinstance(error, errors.StorageUnavailable)):
                raise
            failure = self._record(job, topic_id, topic, error.message, last_seconds=limits.JOB_RETRY_SECONDS_MAX)
            _log.warning("job failed, others go on", **self._fields(failure))
        except Exception as error:  # noqa: BLE001  # it is logged, and of one table or job
            # A programming error, or one of a library. It would end the process, which is then started again, fails
            # again, and commits nothing for any topic.
            text = f"{type(error).__name__}: {error}"[: limits.JOB_ERROR_CHARACTERS_MAX]
            # Messages wait for ingest: it is tried again as often as after an outage.
            last_seconds = limits.PIPELINE_RETRY_SECONDS_MAX if is_ingest else limits.JOB_RETRY_SECONDS_MAX
            failure = self._record(job, topic_id, topic, text, last_seconds=last_seconds)
            self._unexpected += 1
            _log.exception("job failed unexpectedly, others go on; please report this", **self._fields(failure))

    def succeeded(self, job: str, topic_id: int = _WHOLE_JOB) -> None:
        """The job, or its work on this table, was done: its next failure is the first one again."""
        if self._failures.pop((job, topic_id), None) is not None:
            _log.info("job works again", job=job, topic_id=topic_id)

    def take_unexpected(self) -> int:
        """Returns how many unexpected failures there were since the last call: what a job left half done in memory
        is not to be trusted."""
        count, self._unexpected = self._unexpected, 0
        return count

    def documents(self) -> list[dict[str, Any]]:
        """The failures as they are reported to the broker, the last one first."""
        now_ns = self._clock.monotonic_ns()
        return [
            {
                "job": failure.job,
                "topic": failure.topic,
                "error": failure.error,
                "times": failure.times,
                "time_ms": failure.time_ms,
                "retry_seconds": round(max(0, failure.retry_at_ns - now_ns) / 1e9, 1),
            }
            for failure in islice(self._recent(now_ns), limits.REPORTED_TOPICS_MAX)
        ]

    def _recent(self, now_ns: int) -> Iterator[JobFailure]:
        return (failure for failure in reversed(self._failures.values()) if not _is_over(failure, now_ns))

    def _record(self, job: str, topic_id: int, topic: str, error: str, *, last_seconds: float) -> JobFailure:
        before = self._failures.pop((job, topic_id), None)
        times = 1
        if before is not None and not _is_over(before, self._clock.monotonic_ns()):
            times += before.times
        pause = backoff_seconds(times, limits.JOB_RETRY_SECONDS_MIN, last_seconds)
        retry_at_ns = self._clock.monotonic_ns() + int(pause * 1e9)
        failure = JobFailure(job, topic, error, times, self._clock.wall_us() // 1000, retry_at_ns)
        self._failures[job, topic_id] = failure
        if len(self._failures) > limits.JOB_FAILURES_MAX:
            self._failures.popitem(last=False)
        metrics.PIPELINE_JOB_FAILURES.labels(job).inc()
        return failure

    def _fields(self, failure: JobFailure) -> dict[str, Any]:
        seconds = (failure.retry_at_ns - self._clock.monotonic_ns()) / 1e9
        return {
            "job": failure.job,
            "topic": failure.topic,
            "error": failure.error,
            "times": failure.times,
            "retry_seconds": round(seconds, 1),
        }


def _is_over(failure: JobFailure, now_ns: int) -> bool:
    return now_ns >= failure.retry_at_ns + int(limits.JOB_RETRY_SECONDS_MAX * 1e9)
