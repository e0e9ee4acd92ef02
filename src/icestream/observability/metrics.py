"""Every metric of Icestream, declared once. Base units, `_total` for counters, few labels."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, Counter, Gauge
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector


class TickCounter(Collector):
    """A counter that only the loop's thread adds to, at every tick: a plain number, without the lock of the others."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.value = 0
        REGISTRY.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.text, value=self.value)


WAL_WRITES = TickCounter("icestream_wal_writes_total", "Writes handed to the disk: records, footers and seals.")
WAL_BYTES = TickCounter("icestream_wal_written_bytes_total", "Bytes handed to the disk by the log.")
WAL_FILES = Gauge("icestream_wal_files", "Sealed log files on disk.")
WAL_WRITE_FAILURES = Counter(
    "icestream_wal_write_failures_total",
    "Writes that failed and were rolled back; their producers were told 'unknown'.",
)
WAL_MAINTENANCE_FAILURES = Counter(
    "icestream_wal_maintenance_failures_total", "Failed checkpoints, preparations and releases of log files."
)
CLOCK_STEPS_BACK = Counter(
    "icestream_wal_clock_steps_back_total", "Ticks at which the wall clock had gone back by 5 s."
)
APPENDS_SLOWED = Counter("icestream_wal_appends_slowed_total", "Appends that waited because a quota was near.")
APPENDS_REFUSED = Counter("icestream_wal_appends_refused_total", "Appends refused, by error code.", ["code"])
