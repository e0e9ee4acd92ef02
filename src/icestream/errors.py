"""Every error that Icestream raises on purpose, in one tree.

    IcestreamError                 code              retryable
    ├── ConfigurationError         configuration     no    the settings cannot be used as they are
    │   ├── MissingPart            missing_part      no    something that is needed is not installed on this machine
    │   └── ForeignCluster         foreign_cluster   no    a node of another cluster; nothing of it is taken
    │       └── NodeRemoved        node_removed      no    a node that was removed from this cluster
    ├── InvalidInput               invalid           no    the request itself is wrong; nothing was changed
    │   ├── MessageTooLarge        too_large         no
    │   ├── UnknownTopic           unknown_topic     no
    │   ├── TopicElsewhere         topic_elsewhere   no    another node of the cluster serves the topic; it says which
    │   ├── UnknownNamespace       unknown_namespace no
    │   ├── UnknownSubscription    unknown_subscription no
    │   ├── UnknownHandle          unknown_handle    no    a producer or consumer that this connection did not open
    │   ├── UnknownSetting         unknown_setting   no
    │   ├── UnknownLogFile         unknown_log_file  no    no file of the log has or had that number
    │   ├── NotConnected           not_connected     no    no producer or consumer of that name is connected
    │   ├── AlreadyExists          already_exists    no
    │   ├── NotEmpty               not_empty         no    a namespace with topics
    │   ├── TopicMismatch          topic_mismatch    no    the topic is made otherwise than the client thinks
    │   ├── UnknownSchema          unknown_schema    no    no such subject, version or id in the registry
    │   ├── SchemaMismatch         schema_mismatch   no    the topic has another subject than the producer
    │   ├── SchemaIncompatible     schema_incompatible no  a version that may not follow the last one
    │   ├── SchemaViolated         schema_violated   no    a message that does not fit the schema of its topic
    │   ├── PolicyReached          policy            no    a policy of the topic or its namespace allows no more
    │   ├── SubscriptionTaken      taken             no    exclusive, and it has a consumer
    │   ├── OutOfOrderSequence     out_of_order      no    a producer skipped numbers
    │   ├── ProducerFenced         fenced            no    an older epoch of the same producer
    │   ├── UnknownProducer        unknown_producer  no    its window was dropped; it must open again
    │   ├── UnknownTable           unknown_table     no
    │   ├── UnknownView            unknown_view      no
    │   ├── Contradiction          contradiction     no    two parts of one request exclude each other
    │   ├── TopicTable             topic_table       no    the table of a topic does not allow this (hazard 21)
    │   ├── CommitConflict         commit_conflict   no    the table is not what the commit was made for: load it again
    │   │   └── RangeRefused       range_refused     no    the offsets of a round do not continue the table (hazard 14)
    │   └── UnknownVersion         unknown_version   no    no version of the protocol that both sides speak
    ├── PersistentStorageError     storage           no    the seed's name for what the storage facade runs into
    │   ├── Refused                refused           yes   nothing was stored; try again later
    │   │   ├── InFlightFull       in_flight_full    yes
    │   │   ├── RateReached        rate_reached      yes   more than the publish rate of the topic is waiting
    │   │   ├── AfterRefused       after_refused     yes   a batch before it was refused: order would break (hazard 37)
    │   │   ├── ShuttingDown       shutting_down     yes
    │   │   ├── NodeQuotaReached   node_quota        yes
    │   │   ├── TopicQuotaReached  topic_quota       yes
    │   │   ├── DiskFull           disk_full         yes
    │   │   ├── MetadataFull       metadata_full     yes   the budget of the metadata store is used up (hazard 28)
    │   │   └── NotReady           not_ready         yes   the metadata store still reads its log, or has no leader
    │   ├── OutcomeUnknown         unknown           yes   it may or may not be stored; retry with a sequence number
    │   ├── StorageUnavailable     storage_unavailable yes   a catalog or an object store does not answer
    │   │   ├── CircuitOpen        circuit_open      yes   it failed so often that it is not asked now
    │   │   └── LakeAway           lake_away         yes   the lake process, which reads tables, does not answer
    │   ├── AccessDenied           access_denied     no    a catalog or an object store refused the credentials
    │   ├── UnexpectedAnswer       unexpected_answer no    what answers is no catalog, or no object store
    │   ├── PositionGone           position_gone     no    the log no longer holds that offset
    │   ├── LeaseLost              lease_lost        no    a lease on log files ended, or a newer pipeline took over
    │   ├── TableUnreadable        table_unreadable  no    a topic's table holds what we do not read, or lacks a file
    │   │   └── TableDamaged       table_damaged     no    bytes of a file of a topic's table are not what was written
    │   ├── MetadataDamaged        metadata_damaged  no    a value in the metadata store is not what its key promises
    │   ├── MetadataFileMissing    metadata_file_missing no    the file that describes a table is not where it should be
    │   ├── MetadataFileDamaged    metadata_file_damaged no    the file that describes a table is not readable as one
    │   ├── EngineFailed           engine_failed     yes   Spark, or a job of it, died: nothing of the round counts
    │   └── LogError               log               no
    │       ├── LogLocked          log_locked        no    another process has this log open
    │       ├── LogClosed          log_closed        no
    │       ├── LogStopped         log_stopped       no    a sync failed: the node must restart
    │       ├── LogDamaged         log_damaged       no    needs `icestream wal repair`
    │       ├── FormatUnknown      format_unknown    no    written by a newer version
    │       ├── DecodeError        decode            no    bytes that are not what they claim to be
    │       └── StaleRead          stale_read        yes   the file was recycled while it was read
    └── ClientError                client            no    raised by the client library itself
        ├── ConnectionLost         connection_lost   yes   the broker cannot be reached
        ├── SlowConsumer           slow_consumer     no    messages were not taken before the buffer was full
        ├── ConsumerClosed         consumer_closed   no    deleted, or another one of its name came
        └── ClientClosed           client_closed     no

`retryable`: the same call may succeed later without anybody's help. `hint` says what to do, in words that a person at a
terminal can act on. The native protocol carries `code` itself; what every other way out says of an error stands in one
table, `SAID` (docs/errors.md shows it), with a column for each: a further protocol gets its own, never a second tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class IcestreamError(Exception):
    """Base of the tree: a message, a stable code, a hint, whether a retry makes sense; `details` are for programs."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigurationError(IcestreamError):
    code = "configuration"


class MissingPart(ConfigurationError):
    code = "missing_part"


class ForeignCluster(ConfigurationError):
    code = "foreign_cluster"


class NodeRemoved(ForeignCluster):
    code = "node_removed"


class InvalidInput(IcestreamError):
    code = "invalid"


class MessageTooLarge(InvalidInput):
    code = "too_large"


class UnknownTopic(InvalidInput):
    code = "unknown_topic"


class TopicElsewhere(InvalidInput):
    code = "topic_elsewhere"  # `details`: where that node is, by the way in: native, danube, http


class UnknownNamespace(InvalidInput):
    code = "unknown_namespace"


class UnknownSubscription(InvalidInput):
    code = "unknown_subscription"


class UnknownHandle(InvalidInput):
    code = "unknown_handle"


class UnknownSetting(InvalidInput):
    code = "unknown_setting"


class UnknownLogFile(InvalidInput):
    code = "unknown_log_file"


class NotConnected(InvalidInput):
    code = "not_connected"


class AlreadyExists(InvalidInput):
    code = "already_exists"


class NotEmpty(InvalidInput):
    code = "not_empty"


class TopicMismatch(InvalidInput):
    code = "topic_mismatch"


class UnknownSchema(InvalidInput):
    code = "unknown_schema"


class SchemaMismatch(InvalidInput):
    code = "schema_mismatch"


class SchemaIncompatible(InvalidInput):
    code = "schema_incompatible"


class SchemaViolated(InvalidInput):
    code = "schema_violated"


class PolicyReached(InvalidInput):
    code = "policy"


class SubscriptionTaken(InvalidInput):
    code = "taken"


class OutOfOrderSequence(InvalidInput):
    code = "out_of_order"


class ProducerFenced(InvalidInput):
    code = "fenced"


class UnknownProducer(InvalidInput):
    code = "unknown_producer"


class UnknownTable(InvalidInput):
    code = "unknown_table"


class UnknownView(InvalidInput):
    code = "unknown_view"


class Contradiction(InvalidInput):
    code = "contradiction"


class TopicTable(InvalidInput):
    code = "topic_table"


class CommitConflict(InvalidInput):
    """`details`: the tables that stood in the way, the present positions of a topic's table."""

    code = "commit_conflict"


class RangeRefused(CommitConflict):
    code = "range_refused"


class UnknownVersion(InvalidInput):
    code = "unknown_version"


class PersistentStorageError(IcestreamError):
    code = "storage"


class Refused(PersistentStorageError):
    code = "refused"
    retryable = True


class InFlightFull(Refused):
    code = "in_flight_full"


class RateReached(Refused):
    code = "rate_reached"


class AfterRefused(Refused):
    code = "after_refused"


class ShuttingDown(Refused):
    code = "shutting_down"


class NodeQuotaReached(Refused):
    code = "node_quota"


class TopicQuotaReached(Refused):
    code = "topic_quota"


class DiskFull(Refused):
    code = "disk_full"


class MetadataFull(Refused):
    code = "metadata_full"


class NotReady(Refused):
    code = "not_ready"


class OutcomeUnknown(PersistentStorageError):
    code = "unknown"
    retryable = True


class StorageUnavailable(PersistentStorageError):
    """`is_ambiguous`: the request was sent, so what it asked for may have happened all the same."""

    code = "storage_unavailable"
    retryable = True

    def __init__(self, message: str, *, hint: str = "", is_ambiguous: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_ambiguous = is_ambiguous


class CircuitOpen(StorageUnavailable):
    code = "circuit_open"


class LakeAway(StorageUnavailable):
    code = "lake_away"


class AccessDenied(PersistentStorageError):
    code = "access_denied"


class UnexpectedAnswer(PersistentStorageError):
    code = "unexpected_answer"


class PositionGone(PersistentStorageError):
    code = "position_gone"


class LeaseLost(PersistentStorageError):
    code = "lease_lost"


class TableUnreadable(PersistentStorageError):
    code = "table_unreadable"


class TableDamaged(TableUnreadable):
    code = "table_damaged"


class MetadataDamaged(PersistentStorageError):
    code = "metadata_damaged"


class MetadataFileMissing(PersistentStorageError):
    code = "metadata_file_missing"


class MetadataFileDamaged(PersistentStorageError):
    code = "metadata_file_damaged"


class EngineFailed(PersistentStorageError):
    code = "engine_failed"
    retryable = True


class LogError(PersistentStorageError):
    code = "log"


class LogLocked(LogError):
    code = "log_locked"


class LogClosed(LogError):
    code = "log_closed"


class LogStopped(LogError):
    code = "log_stopped"


class LogDamaged(LogError):
    code = "log_damaged"


class FormatUnknown(LogError):
    code = "format_unknown"


class DecodeError(LogError):
    code = "decode"


class StaleRead(LogError):
    code = "stale_read"
    retryable = True


class ClientError(IcestreamError):
    code = "client"


class ConnectionLost(ClientError):
    code = "connection_lost"
    retryable = True


class SlowConsumer(ClientError):
    code = "slow_consumer"


class ConsumerClosed(ClientError):
    code = "consumer_closed"


class ClientClosed(ClientError):
    code = "client_closed"


def _by_code(kind: type[IcestreamError]) -> dict[str, type[IcestreamError]]:
    found = {kind.code: kind}
    for child in kind.__subclasses__():
        found.update(_by_code(child))
    return found


# Every kind by its code: how an error that travelled over a wire becomes itself again.
BY_CODE: dict[str, type[IcestreamError]] = _by_code(IcestreamError)
