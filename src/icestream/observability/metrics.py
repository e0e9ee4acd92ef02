"""Every metric of Icestream, declared once. Base units, `_total` for counters, few labels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import REGISTRY, Counter, Gauge, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

disable_created_metrics()  # type: ignore[no-untyped-call]  # all counters are created with the process


class TickCounter(Collector):
    """A counter that only the loop's thread adds to, at every tick: a plain number, without a lock."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.value = 0
        REGISTRY.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self.name, self.text, value=self.value)


class TickCounters(Collector):
    """A TickCounter with one label. Its values are few and fixed: outcomes, codes of errors."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self.name = name
        self.text = text
        self.label = label
        self.values: dict[str, float] = {}
        REGISTRY.register(self)

    def add(self, value: str, amount: float = 1) -> None:
        self.values[value] = self.values.get(value, 0) + amount

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self.name, self.text, labels=[self.label])
        for value, count in sorted(self.values.items()):
            family.add_metric([value], count)
        yield family


class TickHistogram(Collector):
    """A histogram with one label that only the loop's thread observes: plain numbers, without a lock."""

    def __init__(self, name: str, text: str, label: str, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the buckets, rising; one without a bound follows."""
        self.name = name
        self.text = text
        self.label = label
        self._bounds = tuple(bounds)
        self._counts: dict[
            str, list[int]
        ] = {}  # of each bucket alone; Prometheus wants sums, which are made when shown
        self._sums: dict[str, float] = {}
        REGISTRY.register(self)

    def observe(self, value: str, amount: float) -> None:
        counts = self._counts.get(value)
        if counts is None:
            counts = self._counts[value] = [0] * (len(self._bounds) + 1)
            self._sums[value] = 0.0
        counts[bisect_left(self._bounds, amount)] += 1
        self._sums[value] += amount

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self.name, self.text, labels=[self.label])
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for value, counts in sorted(self._counts.items()):
            family.add_metric([value], list(zip(names, accumulate(counts), strict=True)), self._sums[value])
        yield family


class LabelledGauge(Collector):
    """A gauge with one label whose values are set together: a label that is absent is not shown."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self.name = name
        self.text = text
        self.label = label
        self.values: dict[str, float] = {}
        REGISTRY.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self.name, self.text, labels=[self.label])
        for value, count in sorted(self.values.items()):
            family.add_metric([value], count)
        yield family


WAL_WRITES = TickCounter("icestream_wal_writes_total", "Writes handed to the disk: records, footers and seals.")
WAL_BYTES = TickCounter("icestream_wal_written_bytes_total", "Bytes handed to the disk by the log.")
WAL_FILES = Gauge("icestream_wal_files", "Sealed log files on disk.")
WAL_WRITE_FAILURES = Counter(
    "icestream_wal_write_failures_total",
    "Failed writes that were rolled back; their producers got an unknown outcome.",
)
WAL_MAINTENANCE_FAILURES = Counter(
    "icestream_wal_maintenance_failures_total", "Failed checkpoints, preparations and releases of log files."
)
WAL_RETENTION_DROPPED = Counter(
    "icestream_wal_retention_dropped_messages_total", "Messages that a retention dropped from the log."
)
WAL_SPILLED_BYTES = Counter(
    "icestream_wal_spilled_bytes_total", "Bytes that were written to spill logs of topics without progress."
)
WAL_DELETED = Counter(
    "icestream_wal_deleted_messages_total", "Messages that were in no table when their topic was deleted."
)
MESSAGES_DROPPED = Counter(
    "icestream_delivery_dropped_messages_total", "Messages that a subscription dropped, by reason.", ["reason"]
)
SCHEMA_VIOLATIONS = Counter(
    "icestream_schema_violations_total", "Messages that did not fit the schema of their topic, by policy.", ["policy"]
)
DEAD_LETTERS = Counter("icestream_delivery_dead_letters_total", "Messages that went to a dead-letter topic.")
MQTT_CONNECTS = TickCounters(
    "icestream_mqtt_connects_total", "CONNECT packets that were answered, by reason code.", "reason"
)
MQTT_RELAYED = TickCounters(
    "icestream_mqtt_relayed_total", "MQTT connections that were passed on to the node that serves MQTT.", "outcome"
)
MQTT_DISCONNECTS = TickCounters(
    "icestream_mqtt_disconnects_total", "MQTT connections that ended, by reason code.", "reason"
)
MQTT_EXPIRED = Counter("icestream_mqtt_expired_messages_total", "Messages whose expiry passed before they were sent.")
MQTT_LOST = Counter(
    "icestream_mqtt_lost_offsets_total", "Messages that sessions were owed and lost, by retention or by their lag."
)
MQTT_RETAINED_REFUSED = Counter(
    "icestream_mqtt_retained_refused_total", "Retained messages that were stored and not kept as the last value."
)
MQTT_WILLS = Counter("icestream_mqtt_wills_total", "Wills that were published.")
MQTT_SESSIONS_EXPIRED = Counter("icestream_mqtt_sessions_expired_total", "Sessions that ended by their expiry.")
MQTT_LAGGED = Counter(
    "icestream_mqtt_sessions_lagged_total",
    "Sessions and shared groups that lost their backlog by mqtt.session_lag_bytes_max.",
)
MQTT_REPAIRS = Counter("icestream_mqtt_session_repairs_total", "Silent sessions that the watchdog started again.")
CLOCK_STEPS_BACK = Counter(
    "icestream_wal_clock_steps_back_total", "Ticks at which the wall clock had gone back by 5 s."
)
APPENDS_SLOWED = Counter("icestream_wal_appends_slowed_total", "Appends that waited because a quota was near.")
APPENDS_REFUSED = Counter("icestream_wal_appends_refused_total", "Appends refused, by error code.", ["code"])

# --- publishing and delivery: whatever the front end ------------------------------------------------------------------
PUBLISH_OUTCOMES = TickCounters(
    "icestream_publish_batches_total", "Batches by outcome: stored, duplicate, or the code of an error.", "outcome"
)
PUBLISHED_MESSAGES = TickCounter("icestream_publish_messages_total", "Messages that were stored.")
PUBLISHED_BYTES = TickCounter("icestream_publish_bytes_total", "Bytes of the batches that were stored.")
DELIVERED_MESSAGES = TickCounter("icestream_delivery_messages_total", "Messages sent to consumers, repeats included.")
DELIVERED_BYTES = TickCounter("icestream_delivery_bytes_total", "Bytes of messages sent to consumers.")
REDELIVERED_MESSAGES = TickCounter(
    "icestream_delivery_redelivered_messages_total", "Messages sent to consumers again after they failed."
)
ACKED_MESSAGES = TickCounter("icestream_delivery_acked_messages_total", "Messages that consumers acked.")
NACKED_MESSAGES = TickCounter("icestream_delivery_nacked_messages_total", "Messages that consumers nacked.")
READ_FAILURES = TickCounter("icestream_delivery_read_failures_total", "Reads for consumers that failed; tried again.")
STALLED_READERS = LabelledGauge(
    "icestream_stalled_readers",
    "Shards of subscriptions whose next messages cannot be read, by code of the error.",
    "reason",
)
DELIVERY_STANDSTILLS = TickCounters(
    "icestream_delivery_standstills_total",
    "Times that delivery stalled although messages waited, by reason; at most once a minute and shard.",
    "reason",
)
DELIVERY_BEHIND = TickCounter(
    "icestream_delivery_falling_behind_total",
    "Times that a subscription fell behind although its consumers had credit; at most once a minute and shard.",
)
READS = TickCounters("icestream_reader_polls_total", "Reads for subscriptions, by the tier that served them.", "tier")
READ_INTERVALS = TickHistogram(
    "icestream_reader_poll_interval_seconds",
    "Time between a read of a shard and the one before it, by the tier that served the later one.",
    "tier",
    (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60),
)
READ_GAPS = TickCounter(
    "icestream_reader_gaps_total", "Ranges of offsets without a message that were reported to readers of tables."
)
READ_GAP_OFFSETS = TickCounter(
    "icestream_reader_gap_offsets_total", "Offsets in the ranges of icestream_reader_gaps_total."
)
READS_SHARED = TickCounter(
    "icestream_reader_shared_reads_total", "Reads of tables that joined the same read of another reader."
)
READ_WAITS = TickCounter(
    "icestream_reader_lake_waits_total",
    "Reads that were postponed because the lake process was unreachable or too slow.",
)
CURSORS_WRITTEN = TickCounter("icestream_cursor_writes_total", "Cursors written to the metadata store.")

# --- security ---------------------------------------------------------------------------------------------------------
LOGINS = TickCounters(
    "icestream_logins_total",
    "Credentials that were verified: ok, failed, or throttled because too many logins waited.",
    "outcome",
)
DENIALS = TickCounters("icestream_access_denied_total", "Denied actions, by action.", "action")
AUDIT_EVENTS = TickCounters("icestream_audit_events_total", "Events that the audit recorded, by kind.", "event")
AUDIT_DROPPED = TickCounters(
    "icestream_audit_dropped_total",
    "Events that the audit counted and did not record: quota, or the code of the error that prevented the write.",
    "reason",
)

# --- reads of tables, in the lake process -----------------------------------------------------------------------------
SCANS = Counter("icestream_scan_questions_total", "Scan requests of the broker, by outcome.", ["outcome"])
SCAN_SECONDS = Counter("icestream_scan_seconds_total", "Time spent on scan requests.")
SCAN_PLANS = Counter("icestream_scan_plans_total", "Tables that were loaded for readers: first seen, changed, or old.")
SCAN_GROUPS = Counter(
    "icestream_scan_row_groups_total",
    "Row groups of tables that were read from their files, or skipped because no row can match the reader's filter.",
    ["outcome"],
)
SCAN_FILES_SKIPPED = Counter(
    "icestream_scan_files_skipped_total", "Data files not opened because no row can match the reader's filter."
)
SCAN_READ_BYTES = Counter("icestream_scan_read_bytes_total", "Bytes of row groups that were read from their files.")
SCAN_SENT_BYTES = Counter("icestream_scan_sent_bytes_total", "Bytes of the rows in scan replies.")
GROUP_CACHE_BYTES = Gauge("icestream_scan_cache_bytes", "Bytes of row groups in the cache.")
READ_MISSING = Counter(
    "icestream_scan_missing_offsets_total", "Committed offsets without a row that readers met, by cause.", ["cause"]
)
GROUP_CACHE = Counter("icestream_scan_cache_total", "Row groups looked for in the cache, by hit or miss.", ["outcome"])
READ_DOUBLED = Counter("icestream_scan_doubled_rows_total", "Rows left out because their offset was there before.")

# --- catalogs and object stores elsewhere -----------------------------------------------------------------------------
STORAGE_CALLS = Counter(
    "icestream_storage_calls_total",
    "Requests to a catalog or object store: answered, failed, or refused because it failed too often.",
    ["target", "outcome"],
)
STORAGE_CIRCUIT = Gauge(
    "icestream_storage_circuit",
    "1 for the state of the circuit breaker of a catalog or object store: closed, open, half-open.",
    ["target", "state"],
)


# --- the pipeline, in its own process ---------------------------------------------------------------------------------
PIPELINE_BACKLOG_ROWS = Gauge("icestream_pipeline_backlog_messages", "Messages in the log that are in no table yet.")
PIPELINE_BACKLOG_BYTES = Gauge(
    "icestream_pipeline_backlog_bytes", "Approximate bytes of messages in the log that are in no table yet."
)
PIPELINE_LAG_SECONDS = Gauge("icestream_pipeline_lag_seconds", "Age of the oldest message that is in no table yet.")
PIPELINE_UNCOMMITTED_ROWS = Gauge(
    "icestream_pipeline_uncommitted_messages", "Messages in data files that are not committed yet."
)
PIPELINE_UNCOMMITTED_SINCE = Gauge(
    "icestream_pipeline_uncommitted_since_seconds",
    "Unix time since which written data files wait for their commit; 0: none waits.",
)
PIPELINE_COMMIT_TIME = Gauge(
    "icestream_pipeline_last_commit_time_seconds", "When the newest snapshot was committed, in Unix time."
)
PIPELINE_COMMIT_SECONDS = Gauge(
    "icestream_pipeline_commit_seconds", "Time of the last round's commit, from the first manifest to the answer."
)
PIPELINE_ROUNDS = Counter("icestream_pipeline_rounds_total", "Rounds that wrote something.")
PIPELINE_ROWS = Counter("icestream_pipeline_rows_total", "Rows committed to tables.")
PIPELINE_FILES = Counter("icestream_pipeline_files_total", "Data files committed to tables.")
PIPELINE_BYTES = Counter("icestream_pipeline_bytes_total", "Bytes of data files committed to tables.")
PIPELINE_STEP_SECONDS = Counter(
    "icestream_pipeline_step_seconds_total",
    "Time of rounds by step: tables, write, commit, advance, clean_up.",
    ["step"],
)
PIPELINE_LEARNED_STRUCTURES = Counter(
    "icestream_pipeline_learned_structures_total", "Versions of learned structures of MQTT topics that were stored."
)
PIPELINE_COMMIT_RETRIES = Counter("icestream_pipeline_commit_retries_total", "Commits that were tried again.")
PIPELINE_VANISHED_FILES = Counter(
    "icestream_pipeline_vanished_files_total",
    "Data files that vanished after their commit: it was reverted and the messages were written again.",
)
PIPELINE_TASK_ERRORS = Counter(
    "icestream_pipeline_task_errors_total", "Parts of rounds that failed, by trouble.", ["trouble"]
)
PIPELINE_JOB_FAILURES = Counter(
    "icestream_pipeline_job_failures_total",
    "Failures of background jobs, of one table or as a whole; each is backed off by itself.",
    ["job"],
)
PIPELINE_COMPACTION_GROUPS = Counter(
    "icestream_pipeline_compaction_groups_total",
    "Groups of files by outcome: committed; overtaken by another commit; left_alone, because they cannot get better or "
    "are not understood; refused, because the rows would not be the same.",
    ["outcome"],
)
PIPELINE_COMPACTION_FILES = Counter(
    "icestream_pipeline_compaction_files_total", "Data files that compaction replaced, and added instead.", ["change"]
)
PIPELINE_COMPACTION_BYTES = Counter(
    "icestream_pipeline_compaction_bytes_total", "Bytes of data files that compaction read and wrote.", ["direction"]
)
PIPELINE_COMPACTION_ROWS = Counter("icestream_pipeline_compaction_rows_total", "Rows in files that compaction added.")
PIPELINE_COMPACTION_DELETED_ROWS = Counter(
    "icestream_pipeline_compaction_deleted_rows_total",
    "Rows that compaction left out because delete files of engines deleted them.",
)
PIPELINE_COMPACTION_CPU_SECONDS = Counter(
    "icestream_pipeline_compaction_cpu_seconds_total", "CPU seconds of the tasks of compaction."
)
PIPELINE_COMPACTION_MEMORY = Gauge(
    "icestream_pipeline_compaction_memory_bytes", "Highest resident memory of the last task of compaction."
)
PIPELINE_REMOVED_FILES = Counter(
    "icestream_pipeline_removed_files_total",
    "Removed files that no snapshot refers to: of expired snapshots and of lost rounds.",
)
PIPELINE_UNNEEDED_FILES = Gauge(
    "icestream_pipeline_unneeded_files",
    "Files of tables that no snapshot names and that are there still: waiting for their delay, or condemned, for a "
    "later pass to remove.",
    ["state"],
)
PIPELINE_REMOVED_BYTES = Counter("icestream_pipeline_removed_bytes_total", "Bytes of removed files.")
BACKUPS = Counter("icestream_backups_total", "Completed backups of this process, by state of their root.", ["state"])
BACKUP_MANIFESTS = Counter(
    "icestream_backup_manifests_total", "Manifests of seed 003 beside backups, by outcome.", ["outcome"]
)
BACKUP_DRILLS = Counter("icestream_backup_drills_total", "Drills of this node by outcome.", ["outcome"])
BACKUP_DRILL_TIME = Gauge(
    "icestream_backup_drill_success_timestamp_seconds",
    "When the last drill of this node that passed had ended, as Unix time; 0: the target has no report of one.",
)
ARCHIVE_AGE = Gauge(
    "icestream_archive_age_seconds",
    "What a disaster now would lose of the archive: the time since everything until then was archived.",
)
ARCHIVE_BYTES = Counter("icestream_archive_bytes_total", "Bytes of archive objects written.")
ARCHIVE_OBJECTS = Counter("icestream_archive_objects_total", "Archive objects written.")
ARCHIVE_FAILURES = Counter("icestream_archive_failures_total", "Passes of the archive that failed; they are repeated.")
ARCHIVE_GAPS = Counter("icestream_archive_gaps_total", "Gaps of the archive: records that were freed before.")
ARCHIVE_RELEASES = Counter(
    "icestream_archive_releases_total", "How often the log was no longer held for the archive: at a bound."
)
EXPIRED_SNAPSHOTS = Counter(
    "icestream_pipeline_expired_snapshots_total", "Snapshots that expired without a commit of messages: of idle tables."
)
EXPIRED_TAGS = Counter(
    "icestream_pipeline_expired_tags_total",
    "Tags of the pipeline that went without a commit of messages: for their age, or because tags keep too many bytes.",
    ["reason"],
)
RETENTION_ROWS = Counter("icestream_retention_removed_messages_total", "Messages that a retention removed from tables.")
ERASED_MESSAGES = Counter("icestream_erased_messages_total", "Messages that erasures removed from tables.")
RETENTION_BYTES = Counter("icestream_retention_removed_bytes_total", "Bytes of data files that a retention removed.")
RETENTION_UNCONSUMED = Counter(
    "icestream_retention_unconsumed_messages_total",
    "Messages that retention removed at their upper bound although a consumer had not acked them.",
)
RETENTION_CLOCK_BELIEVED = Gauge(
    "icestream_retention_clock_believed", "0 while the clock is not believed and nothing is removed by age, else 1."
)
PIPELINE_STOPPED_TOPICS = Gauge(
    "icestream_pipeline_stopped_topics", "Topics that are not written at present, by cause.", ["cause"]
)


# --- read when metrics are collected: no counting ---------------------------------------------------------------------
class Reading(NamedTuple):
    """A gauge whose value is read from its component when metrics are collected."""

    name: str
    text: str
    label: str = ""

    def family(self, values: float | dict[str, float]) -> GaugeMetricFamily:
        if not isinstance(values, dict):
            return GaugeMetricFamily(self.name, self.text, value=values)
        family = GaugeMetricFamily(self.name, self.text, labels=[self.label])
        for value, number in values.items():
            family.add_metric([value], number)
        return family


class Readings(NamedTuple):
    """A Reading with several labels."""

    name: str
    text: str
    labels: tuple[str, ...]

    def family(self, values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for label, number in values.items():
            family.add_metric(label, number)
        return family


READY = Reading("icestream_ready", "1 when the node is ready: no needed health check fails.")
HEALTH = Reading(
    "icestream_health", "1 for a health check of /readyz?verbose that succeeds, 0 for one that fails.", "check"
)
CONNECTIONS = Reading("icestream_connections", "Open connections, by listener.", "listener")
SESSIONS = Reading("icestream_access_sessions", "Open sessions of clients, authenticated or anonymous.")
NAMESPACES = Reading("icestream_namespaces", "Namespaces.")
TOPICS = Reading("icestream_topics", "Topics.")
PRODUCERS = Reading("icestream_producers", "Producers that are connected.")
SUBSCRIPTIONS = Reading("icestream_subscriptions", "Subscriptions.")
CONSUMERS = Reading("icestream_consumers", "Consumers that are connected.")
LAG = Reading("icestream_subscriptions_lag_messages", "Messages that are not acked, over all subscriptions.")
LAG_OF_EACH = Readings(
    "icestream_subscription_lag_messages",
    "Messages that a subscription has not acked; of the subscriptions that lag most.",
    ("topic", "subscription"),
)
PAUSED = Reading(
    "icestream_subscriptions_paused_shards", "Shards in which no new messages are delivered, by reason.", "reason"
)
BLOCKED = Reading("icestream_subscriptions_blocked_messages", "Messages that failed too often and block others.")
MQTT_SESSIONS = Reading("icestream_mqtt_sessions", "Sessions of MQTT clients, connected or not.", "state")
MQTT_SUBSCRIPTIONS = Reading("icestream_mqtt_subscriptions", "Subscriptions of MQTT clients and shared groups.")
MQTT_GROUPS = Reading("icestream_mqtt_shared_groups", "Shared subscriptions, each with all its members.")
MQTT_LAG = Reading(
    "icestream_mqtt_session_lag_messages",
    "Stored messages that an MQTT session has not looked at; of the sessions that lag most.",
    "client_id",
)
MQTT_LAG_BYTES = Reading("icestream_mqtt_session_lag_bytes_max", "About the bytes of the largest lag of a session.")
MQTT_LAG_SECONDS = Reading("icestream_mqtt_session_lag_seconds_max", "About the age of the oldest lag of a session.")
MQTT_RETAINED = Reading("icestream_mqtt_retained_messages", "Retained messages.")
MQTT_RETAINED_BYTES = Reading("icestream_mqtt_retained_bytes", "Bytes of retained messages.")
MQTT_PARKED = Reading("icestream_mqtt_parked_messages", "Messages of MQTT clients that wait for room in the log.")
MQTT_TOPICS = Reading("icestream_mqtt_topics", "MQTT topics that listings know.")
WAL_USED = Reading("icestream_wal_used_bytes", "Bytes that the log takes on disk.")
WAL_WARM = Reading("icestream_wal_warm_bytes", "WAL bytes already in tables and kept only as a cache; reclaimable.")
WAL_SPILL = Reading("icestream_wal_spill_bytes", "WAL bytes in spill logs of topics whose tables accept no commits.")
WAL_SPILL_TOPICS = Reading("icestream_wal_spill_topics", "Topics that have a spill log.")
WAL_BALLAST = Reading(
    "icestream_wal_ballast_bytes", "Disk space reserved for draining the log (ballast); 0 while it is released."
)
WAL_LEASES = Reading("icestream_wal_leases", "Leases of the pipeline on log files.")
WAL_BACKLOG = Reading("icestream_wal_backlog_messages", "Messages that are synced and in no table yet.")
WAL_BACKLOG_BYTES = Reading(
    "icestream_wal_backlog_bytes", "Bytes of messages in log files that are not in tables as a whole."
)
WAL_BACKLOG_SECONDS = Reading(
    "icestream_wal_backlog_seconds", "Approximate age of the oldest message that is in no table; 0 if there is none."
)
WAL_QUOTA = Reading("icestream_wal_quota_bytes", "Bytes that the log may take on disk.")
WAL_IN_FLIGHT = Reading("icestream_wal_in_flight_bytes", "Bytes that wait for the disk.")
WAL_SYNCED_LSN = Reading("icestream_wal_synced_lsn", "The last record that is known to be on disk.")
WAL_SYNC_MODE = Reading("icestream_wal_sync_mode", "1 for the mode that decides when an ack leaves.", "mode")
WAL_SYNC_SECONDS = Reading("icestream_wal_sync_seconds", "How long a sync of the log takes: a moving average.")
WAL_GAPS = Reading("icestream_wal_gaps", "Declared gaps: ranges of offsets that hold no message, over all shards.")
WAL_TAIL = Reading("icestream_wal_tail_bytes", "Bytes of the newest messages that are held in memory.")
RAFT_MESSAGES = TickCounters(
    "icestream_raft_messages_total", "Messages to other nodes, by the name of the call.", "rpc"
)
RAFT_DROPPED = TickCounter("icestream_raft_dropped_messages_total", "Messages to nodes that were away or too slow.")
RAFT_SNAPSHOT_BYTES = TickCounter("icestream_raft_snapshot_sent_bytes_total", "Bytes of snapshots sent to others.")
RAFT_STATES_COMPARED = TickCounter("icestream_raft_states_compared_total", "State hashes compared with other nodes.")
RAFT_STATES_DIFFERENT = TickCounter("icestream_raft_states_different_total", "Comparisons that found a difference.")
RAFT_TERM = Reading("icestream_raft_term", "The term of the metadata store's consensus.")
RAFT_IS_LEADER = Reading("icestream_raft_is_leader", "1 on the node that leads.")
RAFT_HAS_LEADER = Reading("icestream_raft_has_leader", "1 when this node knows a leader.")
RAFT_COMMIT = Reading("icestream_raft_commit_index", "The last entry that is known to be committed.")
RAFT_APPLIED = Reading("icestream_raft_applied_index", "The last entry that is applied.")
RAFT_VOTERS = Reading("icestream_raft_voters", "Nodes that vote.")
RAFT_LEARNERS = Reading("icestream_raft_learners", "Nodes that replicate everything and do not vote.")
RAFT_PROPOSAL_SECONDS = Reading(
    "icestream_raft_proposal_seconds", "Moving average of the time that a command takes from this node."
)
RAFT_SYNC_SECONDS = Reading("icestream_raft_sync_seconds", "Moving average of the time of a sync of the metadata log.")
RAFT_TICK_DRIFT = Reading("icestream_raft_tick_drift_seconds", "The largest delay of a Raft tick since the start.")
RAFT_LATE_TICKS = Reading("icestream_raft_late_ticks", "Ticks that came half an election late, since the start.")
RAFT_WATCH_LAG = Reading("icestream_raft_watch_lag_revisions", "Revisions that the slowest watch has not consumed yet.")
RAFT_SNAPSHOT_SIZE = Reading("icestream_raft_snapshot_bytes", "The size of this node's newest snapshot.")
METADATA_REVISION = Reading("icestream_metadata_revision", "The revision of the metadata store.")
METADATA_KEYS = Reading("icestream_metadata_keys", "Keys in the metadata store.")
METADATA_BYTES = Reading("icestream_metadata_bytes", "Bytes of keys and values in the metadata store.")
CERTIFICATE_END = Reading(
    "icestream_certificate_end_timestamp_seconds", "When a certificate expires, as Unix time.", "setting"
)
CERTIFICATE_STALE = Reading(
    "icestream_certificate_stale", "1 while changed TLS files of a listener cannot be used.", "listener"
)
CHILD_UP = Reading("icestream_child_up", "1 when a child process runs and answers.", "process")


class Counted(NamedTuple):
    """A counter whose numbers are kept by another component."""

    name: str
    text: str
    labels: tuple[str, ...]

    def family(self, values: Mapping[tuple[str, ...], float]) -> CounterMetricFamily:
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for label, number in values.items():
            family.add_metric(label, number)
        return family


CONNECTIONS_EVICTED = Counted(
    "icestream_connections_evicted_total", "Silent or idle connections that were closed to make room.", ("listener",)
)
CONNECTIONS_REFUSED = Counted(
    "icestream_connections_refused_total", "Connections that were refused because all others were busy.", ("listener",)
)
CHILD_RESTARTS = Counted(
    "icestream_child_restarts_total", "Times that a child process was started again.", ("process",)
)


# --- the API, in the lake process -------------------------------------------------------------------------------------
API_CONNECTED = Reading("icestream_api_broker_connected", "1 while the API reaches its broker.")
API_REQUESTS = Counted("icestream_api_requests_total", "Requests of the API.", ("method", "route", "status"))
API_SECONDS = Counted(
    "icestream_api_request_seconds_total", "Time spent on requests of the API.", ("method", "route", "status")
)
