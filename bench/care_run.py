"""A broker with its pipeline under a steady load for a long time, all of table care on or off, and what a user sees of
it: how many files there are, how fast queries are, how soon publishes are acked, how many bytes nobody needs.

    load   TOPICS topics, RATE messages of 100 B a second in all (care_load.py), commits every second
    care   compaction, clean-up, snapshot expiry, and on every second topic a retention by messages: it keeps a sixth of
           what the run publishes to it. Tags are off, so that what they hold is not garbage. Halfway some messages of
           one topic are erased, with all history that has them
    look   every LOOK_SECONDS, by the catalog: DuckDB queries the newest messages of a topic that keeps everything, and
           all messages of one with a retention; live files and bytes by the tables' summaries; files on disk
    census every CENSUS_SECONDS: which data files are live. What has not been for GRACE_SECONDS and is still on disk is
           garbage after the grace; before that snapshots, which live ten minutes at least, or the delay keep it
    end    the load stops, everything is committed, and every row of every topic is compared with what was acked

Queries count from a sixth of the run on, when retention and the first compactions are in their steady state.
`files_max` says how many files a table may have. tests/process/test_table_care_long_run.py asserts what must hold at
any speed, scenarios/longrun.py measures.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import log2
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import duckdb
from pyiceberg.catalog.rest import RestCatalog

import icestream
from bench import node
from bench.figures import percentile
from bench.harness import RunFailed
from bench.node import WRITER, Child, Node
from icestream import limits

PREFIX = "care-"
LOOK_SECONDS, CENSUS_SECONDS = 15.0, 60.0
QUERIES_PER_LOOK = 3
ERASED = (11, 4_003, 4_004)  # offsets of the first topic
DELAY_MS = limits.CLEAN_UP_DELAY_MS_MIN
# Snapshots of a table with more than SNAPSHOTS_MAX go at this age. A look of the clean-up sees that they are gone, and
# after the delay condemns their files, which the next look removes; a file was live up to a census before it was not.
GRACE_SECONDS = (limits.SNAPSHOT_AGE_MS_MIN + 4 * DELAY_MS) / 1000 + CENSUS_SECONDS
WINDOW_ROWS = 20_000
COMMIT_SECONDS_MAX = 900.0
# The least size of a file in the bound: what a commit of a second writes is larger.
FILE_BYTES_MIN = 4 * limits.KIB


class TableFiles(NamedTuple):
    """The files of a table: those of its current snapshot, and all data files below its folder."""

    live: int
    live_bytes: int
    stored: int
    stored_bytes: int
    commits: int


class Look(NamedTuple):
    """What one look saw; times of queries in seconds."""

    at: float
    window_seconds: float
    scan_seconds: float
    tables: list[TableFiles]

    @property
    def history_ratio(self) -> float:
        """Bytes of data files beside those of the current snapshots, for each byte of these: with what snapshots that
        have not expired keep."""
        live = sum(table.live_bytes for table in self.tables)
        return (sum(table.stored_bytes for table in self.tables) - live) / live if live else 0.0


class Census:
    """When data files were live for the last time. `live` and `stored` of `observe`: sizes by path."""

    def __init__(self) -> None:
        self._live_at: dict[str, float] = {}
        self.ratios: list[
            tuple[float, float]
        ] = []  # garbage after the grace for each live byte, once the grace is over

    def observe(self, at: float, live: Mapping[str, int], stored: Mapping[str, int]) -> None:
        self._live_at = {path: self._live_at.get(path, at) for path in stored}
        self._live_at.update(dict.fromkeys(live, at))
        garbage = sum(size for path, size in stored.items() if at - self._live_at[path] > GRACE_SECONDS)
        if at > GRACE_SECONDS:
            self.ratios.append((at, garbage / max(1, sum(live.values()))))


@dataclass
class LongRun:
    """What a run has measured."""

    seconds: float
    messages: int
    late_seconds: float
    looks: list[Look]
    acks: list[tuple[float, float]]  # seconds since the start, milliseconds
    drain_seconds: float  # until everything was committed after the load
    commits: float  # of a table in a second
    garbage: list[tuple[float, float]]  # seconds since the start, bytes for each live byte (Census)
    rows: int = 0
    problems: list[str] = field(default_factory=list)  # of the rows

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def ack_p99_ms(self) -> float:
        """After the first sixth."""
        return percentile([milliseconds for at, milliseconds in self.acks if at >= self.seconds / 6], 0.99)

    def flatness(self, times: Sequence[tuple[float, float]]) -> float:
        """The median of the last third of a time series against that of the first one."""
        steady = [(at, value) for at, value in times if at >= self.seconds / 6]
        third = max(1, len(steady) // 3)
        return median(value for _, value in steady[-third:]) / median(value for _, value in steady[:third])

    @property
    def window_flatness(self) -> float:
        return self.flatness([(look.at, look.window_seconds) for look in self.looks])

    @property
    def scan_flatness(self) -> float:
        return self.flatness([(look.at, look.scan_seconds) for look in self.looks])

    @property
    def garbage_ratio(self) -> float | None:
        """The most garbage after the grace that a census saw, for each live byte; None in a run shorter than it."""
        return max((ratio for _, ratio in self.garbage), default=None)

    def files_beyond(self) -> list[str]:
        """The tables that had more live files than they may, in words."""
        return [
            f"table {number} had {table.live} files after {look.at:.0f} s, more than {most:.0f}"
            for look in self.looks
            for number, table in enumerate(look.tables)
            if table.live > (most := files_max(table.live_bytes, table.commits / max(look.at, 1.0)))
        ]


def files_max(live_bytes: int, commits_per_second: float) -> float:
    """The number of live files that a table with so many bytes may have.

    Compaction leaves no run of `files_min` neighbours of which the largest is at most half of all: so in every seven
    files from the newest on the size doubles at least, up to half a group, where a file is finished. A plan comes every
    interval, in a turn of the driver that has nothing more urgent; two intervals of new files may wait for it, and
    four when one plan was overtaken.
    """
    doublings = log2(max(2.0, min(limits.COMPACTION_GROUP_BYTES, live_bytes) / FILE_BYTES_MIN))
    unfinished = limits.COMPACTION_FILES_MIN * (1 + doublings)
    finished = 2 * live_bytes / limits.COMPACTION_GROUP_BYTES
    waiting = 4 * commits_per_second * limits.COMPACTION_INTERVAL_MS / 1000
    return unfinished + finished + waiting


def run(path: Path, seconds: float, *, topics: int = 20, rate: int = 10_000, has_care: bool = True) -> LongRun:
    care = {} if has_care else {"pipeline.compaction.enabled": "false", "pipeline.clean_up": "false"}
    settings = {
        f"{WRITER}.writer_flush_interval_ms": "1s",
        "pipeline.clean_up_delay_ms": f"{DELAY_MS}ms",
        "pipeline.hourly_tags_kept_ms": 0,
        "pipeline.daily_tags_kept_ms": 0,
        **care,
    }
    # Not below the minimum of the policy, and not everything.
    kept = int(seconds * rate / topics / 6)
    with node.running(path, settings=settings) as broker:
        with icestream.connect_sync(broker.target.address) as client:
            for number in range(topics):
                client.create_topic(f"/default/{PREFIX}{number}")
                if has_care and number % 2:
                    client.change_topic_policies(f"/default/{PREFIX}{number}", retention_messages=kept)
        log = path / "acks"
        start = time.monotonic()
        load = Child("care_load", broker.target.address, f"/default/{PREFIX}", topics, rate, seconds, log)
        try:
            census = Census()
            looks = _look(broker, topics, start, seconds, census, has_care=has_care)
            said = load.said(seconds + 300)
        except BaseException:
            load.end()
            raise
        drain_start = time.monotonic()
        broker.icestream("lake", "commit-now", "--wait", str(int(COMMIT_SECONDS_MAX)))
        drain_seconds = time.monotonic() - drain_start
        acks = [(float(at), float(took)) for at, took in (line.split() for line in log.read_text().splitlines())]
        commits = sum(table.commits for table in looks[-1].tables) / topics / looks[-1].at
        result = LongRun(
            said["seconds"], sum(said["ends"]), said["late_seconds"], looks, acks, drain_seconds, commits, census.ratios
        )
        check_rows(broker, said["ends"], result, has_care)
        return result


def _look(broker: Node, topics: int, start: float, seconds: float, census: Census, *, has_care: bool) -> list[Look]:
    looks: list[Look] = []
    next_census = CENSUS_SECONDS
    is_erased = not has_care
    with catalog(broker) as connection:
        while (at := time.monotonic() - start) < seconds:
            if at > seconds / 2 and not is_erased:
                is_erased = True
                _erase(broker)
            pause = LOOK_SECONDS * (len(looks) + 1) - at
            if pause > 0:
                time.sleep(min(pause, max(0.0, seconds - at)))
                if at + pause > seconds:
                    break
            looks.append(_one_look(broker, connection, topics, time.monotonic() - start))
            if looks[-1].at >= next_census:
                next_census += CENSUS_SECONDS
                _count(broker, topics, census, time.monotonic() - start)
    if not looks:
        raise RunFailed(f"a run of {seconds:g} s has no look: the first comes after {LOOK_SECONDS:g} s")
    return looks


def _count(broker: Node, topics: int, census: Census, at: float) -> None:
    live: dict[str, int] = {}
    stored: dict[str, int] = {}
    with RestCatalog("lake", uri=broker.catalog) as lake:
        for number in range(topics):
            table = lake.load_table(("default", f"{PREFIX}{number}"))
            stored |= data_files(table.location())
            for task in table.scan().plan_files():
                live[path_of(task.file.file_path)] = task.file.file_size_in_bytes
    census.observe(at, live, stored)


def _erase(broker: Node) -> None:
    where = f"offset in ({', '.join(map(str, ERASED))})"
    broker.icestream("lake", "erase", f"/default/{PREFIX}0", "--where", where, "--history", "drop", "--yes")


def _one_look(broker: Node, connection: Any, topics: int, at: float) -> Look:
    tables = [table_files(broker.table(f"{PREFIX}{number}")) for number in range(topics)]
    newest = committed(broker.table(f"{PREFIX}0"))
    window_seconds = _timed(
        connection,
        f'SELECT count(*), sum(octet_length(payload)) FROM lake."default"."{PREFIX}0" '
        f'WHERE "offset" >= {max(0, newest - WINDOW_ROWS)}',
    )
    scan_seconds = _timed(
        connection,
        f'SELECT count(*), sum(octet_length(payload)) FROM lake."default"."{PREFIX}{1 if topics > 1 else 0}"',
    )
    return Look(at, window_seconds, scan_seconds, tables)


def _timed(connection: Any, statement: str) -> float:
    """The shortest of a few: what else runs on this machine only makes a query longer."""
    seconds = []
    for _ in range(QUERIES_PER_LOOK):
        start = time.monotonic()
        connection.execute(statement).fetchall()
        seconds.append(time.monotonic() - start)
    return min(seconds)


def path_of(location: str) -> str:
    return re.sub("^file:/*", "/", location)


def data_files(location: str) -> dict[str, int]:
    """The sizes of all data files below the folder of a table, by path."""
    sizes: dict[str, int] = {}
    for file in Path(path_of(location), "data").rglob("*.parquet"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            sizes[str(file)] = file.stat().st_size
    return sizes


def table_files(metadata: dict[str, Any]) -> TableFiles:
    summary = current_summary(metadata)
    sizes = data_files(metadata["location"])
    return TableFiles(
        int(summary.get("total-data-files", 0)),
        int(summary.get("total-files-size", 0)),
        len(sizes),
        sum(sizes.values()),
        int(metadata["last-sequence-number"]),
    )


def current_summary(metadata: dict[str, Any]) -> dict[str, Any]:
    current = metadata.get("current-snapshot-id")
    return next(
        (snapshot["summary"] for snapshot in metadata.get("snapshots", ()) if snapshot["snapshot-id"] == current), {}
    )


def committed(metadata: dict[str, Any]) -> int:
    """The next offset of the only shard."""
    return int(json.loads(metadata["properties"].get("icestream.committed", "{}")).get("0", 0))


def check_rows(broker: Node, ends: Sequence[int], result: LongRun, has_care: bool) -> None:
    """Every acked message is a row with its payload, once, without what retention and erasure have removed."""
    with catalog(broker) as connection:
        for number, end in enumerate(ends):
            statement = (
                'SELECT count(*), count(DISTINCT "offset"), min("offset"), max("offset"), '
                "count(*) FILTER (hex(payload[1:8])::VARCHAR != printf('%016X', \"offset\")) "
                f'FROM lake."default"."{PREFIX}{number}"'
            )
            ((rows, distinct, first, last, wrong),) = connection.execute(statement).fetchall()
            first = first or 0
            is_retained = has_care and number % 2 == 1
            erased = [offset for offset in ERASED if has_care and number == 0 and offset < end]
            expected = end - first - len(erased)
            result.rows += rows
            if (rows, distinct, last, wrong) != (expected, expected, end - 1, 0) or (first and not is_retained):
                result.problems.append(
                    f"topic {number}: {rows} rows, {distinct} offsets from {first} to {last}, {wrong} with another "
                    f"payload; {end} messages were acked"
                )
    for number in range(len(ends)):
        report = broker.verify(f"/default/{PREFIX}{number}")
        if not report["is_good"]:
            result.problems.append(f"verify of topic {number}: {report['findings'][:5]}")


@contextlib.contextmanager
def catalog(broker: Node) -> Iterator[Any]:
    """DuckDB with the catalog as `lake`. Its extensions are Python packages, so nothing is fetched."""
    with duckdb.connect(config={"threads": 1}) as connection:
        for name in ("avro", "httpfs", "iceberg"):
            package = find_spec(f"duckdb_extension_{name}")
            if package is None or package.origin is None:
                raise RunFailed(f"the Python package duckdb-extension-{name} is not installed")
            folder = Path(package.origin).parent / "extensions" / f"v{duckdb.__version__}"
            connection.load_extension(str(folder / f"{name}.duckdb_extension"))
        connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{broker.catalog}', AUTHORIZATION_TYPE 'none')")
        yield connection
