"""Every error that Icestream raises on purpose, in one tree.

    IcestreamError                 code              retryable
    ├── ConfigurationError         configuration     no    the settings cannot be used as they are
    │   ├── MissingPart            missing_part      no    something that is needed is not installed on this machine
    │   ├── ForeignBroker          foreign_broker    no    a port is answered by another broker; nothing was done
    │   ├── ForeignLog             foreign_log       no    the log directory holds the log of another node
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
    │   ├── UnknownAccount         unknown_account   no    no such user, service account, role, grant or token
    │   ├── UnknownLogFile         unknown_log_file  no    no file of the log has or had that number
    │   ├── UnknownSession         unknown_session   no    no MQTT session of that client id on this node
    │   ├── UnknownBackup          unknown_backup    no    no backup of that id in the target
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
    │   ├── SessionFenced          session_fenced    no    an older connection of a session, or one that ended
    │   ├── UnknownProducer        unknown_producer  no    its window was dropped; it must open again
    │   ├── UnknownTable           unknown_table     no
    │   ├── UnknownView            unknown_view      no
    │   ├── UnknownWarehouse       unknown_warehouse no    no view of the lake has that name
    │   ├── Contradiction          contradiction     no    two parts of one request exclude each other
    │   ├── TopicTableConflict     topic_table       no    the table of a topic does not allow this (hazard 21)
    │   ├── CommitConflict         commit_conflict   no    the table is not what the commit was made for: load it again
    │   │   └── RangeRefused       range_refused     no    a round or rewrite does not fit its table (hazards 14, 75)
    │   ├── UnknownVersion         unknown_version   no    no version of the protocol that both sides speak
    │   └── PacketRefused          packet_refused    no    an MQTT packet is malformed or breaks a rule of the protocol
    ├── Unauthenticated            unauthenticated   no    no credential, or one that is not (or no longer) valid
    ├── PermissionDenied           permission_denied no    the principal may not do this; it says by which rule
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
    │   │   └── NotReady           not_ready         yes   the metadata store is starting, or has no leader
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
    │   ├── BackupDamaged          backup_damaged    no    an object of a backup is missing, or is not what was written
    │   ├── EngineFailed           engine_failed     yes   Spark, or a job of it, died: nothing of the round counts
    │   └── LogError               log               no
    │       ├── LogLocked          log_locked        no    another process has this log open
    │       ├── LogClosed          log_closed        no
    │       ├── LogStopped         log_stopped       no    a sync failed: the node must restart
    │       ├── LogDamaged         log_damaged       no    needs `icestream wal repair`
    │       │   └── LogOutdated    log_outdated      no    a metadata log that lacks what its node has confirmed
    │       ├── FormatUnknown      format_unknown    no    written by a newer version
    │       ├── DecodeError        decode            no    bytes that are not what they claim to be
    │       └── StaleRead          stale_read        yes   the file was recycled while it was read
    └── ClientError                client            no    raised by the client library itself
        ├── ConnectionLost         connection_lost   yes   the broker cannot be reached
        ├── WrongPort              wrong_port        no    what answers there speaks another protocol
        ├── TlsFailed              tls_failed        no    its certificate is not accepted, or ours is not
        ├── SlowConsumer           slow_consumer     no    messages were not taken before the buffer was full
        ├── SubscriptionStalled    subscription_stalled yes  messages wait that the broker cannot deliver now
        ├── ConsumerClosed         consumer_closed   no    deleted, or another one of its name came
        └── ClientClosed           client_closed     no

`retryable`: the same call may succeed later without a change by an operator. `hint` says what to do, in words that a
person at a terminal can act on. The native protocol carries `code` itself; the codes of all other protocols are in one
table, `WIRE_CODES` in error_codes.py (docs/errors.md shows it), with a column for each: a further protocol gets its own
column, never a second tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class IcestreamError(Exception):
    """Base of the tree: a message, a stable code, a hint, whether a retry makes sense; `details` are for programs."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls, *, code: str, retryable: bool | None = None) -> None:
        """`retryable`: as that of the parent when it is left out."""
        super().__init_subclass__()
        cls.code = code
        if retryable is not None:
            cls.retryable = retryable

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigurationError(IcestreamError, code="configuration"):
    """The settings of the broker cannot be used as they are."""


class MissingPart(ConfigurationError, code="missing_part"):
    """Something that is needed is not installed on this machine; the hint says how to install it."""


class ForeignBroker(ConfigurationError, code="foreign_broker"):
    """A port of a node is answered by another broker; nothing was done there."""


class ForeignLog(ConfigurationError, code="foreign_log"):
    """The log directory holds the log of another node, or one that this node gave up; nothing was changed."""


class ForeignCluster(ConfigurationError, code="foreign_cluster"):
    """The node is of another cluster; nothing of it is taken."""


class NodeRemoved(ForeignCluster, code="node_removed"):
    """The node was removed from this cluster; nothing of it is taken."""


class InvalidInput(IcestreamError, code="invalid"):
    """The request itself is wrong; nothing was changed."""


class MessageTooLarge(InvalidInput, code="too_large"):
    """A message, a batch or a frame is above its bound."""


class UnknownTopic(InvalidInput, code="unknown_topic"):
    """There is no such topic."""


class TopicElsewhere(InvalidInput, code="topic_elsewhere"):
    """Another node of the cluster serves the topic. `details`: its name (node) and address (native, danube, http)."""


class UnknownNamespace(InvalidInput, code="unknown_namespace"):
    """There is no such namespace."""


class UnknownSubscription(InvalidInput, code="unknown_subscription"):
    """The topic has no such subscription."""


class UnknownHandle(InvalidInput, code="unknown_handle"):
    """The handle is of a producer or consumer that this connection did not open."""


class UnknownSetting(InvalidInput, code="unknown_setting"):
    """There is no such key in the settings."""


class UnknownAccount(InvalidInput, code="unknown_account"):
    """There is no such user, service account, role, grant or token."""


class UnknownLogFile(InvalidInput, code="unknown_log_file"):
    """No file of the log has or had that number."""


class UnknownSession(InvalidInput, code="unknown_session"):
    """There is no MQTT session of that client id on this node."""


class UnknownBackup(InvalidInput, code="unknown_backup"):
    """The backup target has no backup of that id."""


class NotConnected(InvalidInput, code="not_connected"):
    """No producer or consumer of that name is connected."""


class AlreadyExists(InvalidInput, code="already_exists"):
    """A topic, namespace or subscription of that name exists."""


class NotEmpty(InvalidInput, code="not_empty"):
    """The namespace still has topics."""


class TopicMismatch(InvalidInput, code="topic_mismatch"):
    """The topic is plain where partitions are named, has partitions where none is, or is dispatched otherwise."""


class UnknownSchema(InvalidInput, code="unknown_schema"):
    """There is no such subject, version or id in the schema registry."""


class SchemaMismatch(InvalidInput, code="schema_mismatch"):
    """The topic has another subject than the producer asks for."""


class SchemaIncompatible(InvalidInput, code="schema_incompatible"):
    """A version of a schema that may not follow the last one."""


class SchemaViolated(InvalidInput, code="schema_violated"):
    """The message does not fit the schema of its topic."""


class PolicyReached(InvalidInput, code="policy"):
    """A policy of the topic or its namespace allows no more."""


class SubscriptionTaken(InvalidInput, code="taken"):
    """The subscription is exclusive and has a consumer."""


class OutOfOrderSequence(InvalidInput, code="out_of_order"):
    """A producer skipped sequence numbers."""


class ProducerFenced(InvalidInput, code="fenced"):
    """The producer was opened again elsewhere: this one has an older epoch."""


class SessionFenced(InvalidInput, code="session_fenced"):
    """The session belongs to a newer connection of its client id, or has ended."""


class UnknownProducer(InvalidInput, code="unknown_producer"):
    """The broker no longer knows the numbers of this producer; open it again."""


class UnknownTable(InvalidInput, code="unknown_table"):
    """There is no such table."""


class UnknownView(InvalidInput, code="unknown_view"):
    """There is no such view."""


class UnknownWarehouse(InvalidInput, code="unknown_warehouse"):
    """No view of the whole lake has that name, and it is none of those of the live tables."""


class Contradiction(InvalidInput, code="contradiction"):
    """Two parts of one request exclude each other."""


class TopicTableConflict(InvalidInput, code="topic_table"):
    """The table of a topic does not allow this (hazard 21)."""


class CommitConflict(InvalidInput, code="commit_conflict"):
    """The table is not what the commit was made for: load it again. `details`: the tables that stood in the way, and
    the present positions of a topic's table."""


class RangeRefused(CommitConflict, code="range_refused"):
    """The offsets of a round do not continue the table, or the files of a rewrite are not in it any more (hazards 14,
    75)."""


class UnknownVersion(InvalidInput, code="unknown_version"):
    """Broker and client have no version of the protocol in common."""


class PacketRefused(InvalidInput, code="packet_refused"):
    """An MQTT packet is malformed, or breaks a rule of the protocol. `reason_code` is the name of it in MQTT 5.0."""

    def __init__(
        self, message: str, *, reason_code: int = 0x80, hint: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.reason_code = reason_code


class Unauthenticated(IcestreamError, code="unauthenticated"):
    """A request has no credential, or one that is not valid; nothing was changed. One text for all reasons."""


class PermissionDenied(IcestreamError, code="permission_denied"):
    """The principal may not do this; nothing was changed."""


class PersistentStorageError(IcestreamError, code="storage"):
    """The storage has a problem that has no code of its own."""


class Refused(PersistentStorageError, code="refused", retryable=True):
    """Nothing was stored; try again later."""


class InFlightFull(Refused, code="in_flight_full"):
    """Too many bytes wait for the disk."""


class RateReached(Refused, code="rate_reached"):
    """More messages than the publish rate of the topic allows are waiting."""


class AfterRefused(Refused, code="after_refused"):
    """A batch before this one was refused: storing it would break the order."""


class ShuttingDown(Refused, code="shutting_down"):
    """The broker is stopping; connect again in a moment."""


class NodeQuotaReached(Refused, code="node_quota"):
    """The log of the broker has reached its quota."""


class TopicQuotaReached(Refused, code="topic_quota"):
    """The topic has reached its quota."""


class DiskFull(Refused, code="disk_full"):
    """The disk of the broker is full."""


class MetadataFull(Refused, code="metadata_full"):
    """The budget of the metadata store is used up."""


class NotReady(Refused, code="not_ready"):
    """The metadata store still reads its log, or has no leader."""


class OutcomeUnknown(PersistentStorageError, code="unknown", retryable=True):
    """The message may or may not be stored; retry with a sequence number."""


class StorageUnavailable(PersistentStorageError, code="storage_unavailable", retryable=True):
    """A catalog or an object store does not answer. `is_ambiguous`: the request was sent, so what it asked for may have
    happened all the same."""

    def __init__(self, message: str, *, hint: str = "", is_ambiguous: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_ambiguous = is_ambiguous


class CircuitOpen(StorageUnavailable, code="circuit_open"):
    """A catalog or an object store failed so often that it is not asked now."""


class LakeAway(StorageUnavailable, code="lake_away"):
    """The lake process, which reads tables, does not answer; readers of history wait for it."""


class AccessDenied(PersistentStorageError, code="access_denied"):
    """A catalog or an object store refused the credentials of the broker."""


class UnexpectedAnswer(PersistentStorageError, code="unexpected_answer"):
    """What answers is no catalog, or no object store."""


class PositionGone(PersistentStorageError, code="position_gone"):
    """The log no longer holds that offset."""


class LeaseLost(PersistentStorageError, code="lease_lost"):
    """A lease on log files ended, or a newer pipeline took over."""


class TableUnreadable(PersistentStorageError, code="table_unreadable"):
    """A topic's table holds something that cannot be read, or lacks a file."""


class TableDamaged(TableUnreadable, code="table_damaged"):
    """Bytes of a file of a topic's table are not what was written: pages or footer cannot be decoded."""


class MetadataDamaged(PersistentStorageError, code="metadata_damaged"):
    """A value in the metadata store is not what its key promises."""


class MetadataFileMissing(PersistentStorageError, code="metadata_file_missing"):
    """The file that describes a table is not where it should be."""


class MetadataFileDamaged(PersistentStorageError, code="metadata_file_damaged"):
    """The file that describes a table is not readable as one."""


class BackupDamaged(PersistentStorageError, code="backup_damaged"):
    """An object of a backup is missing, or its bytes are not what was written."""


class EngineFailed(PersistentStorageError, code="engine_failed", retryable=True):
    """Spark, or a job of it, died; the round is done again."""


class LogError(PersistentStorageError, code="log"):
    """The log of the broker has a problem that has no code of its own."""


class LogLocked(LogError, code="log_locked"):
    """Another process has the log of the broker open."""


class LogClosed(LogError, code="log_closed"):
    """The log of the broker is closed."""


class LogStopped(LogError, code="log_stopped"):
    """A sync of the log failed: the node must restart."""


class LogDamaged(LogError, code="log_damaged"):
    """An operator must repair the log of the broker."""


class LogOutdated(LogDamaged, code="log_outdated"):
    """The metadata log lacks what its node has confirmed; `icestream cluster rejoin` is the way out."""


class FormatUnknown(LogError, code="format_unknown"):
    """The data was written by a newer version of Icestream."""


class DecodeError(LogError, code="decode"):
    """Bytes are not what they claim to be."""


class StaleRead(LogError, code="stale_read", retryable=True):
    """What was being read has moved; read again."""


class ClientError(IcestreamError, code="client"):
    """The client library itself raised this; the broker never sends it."""


class ConnectionLost(ClientError, code="connection_lost", retryable=True):
    """The broker cannot be reached."""


class WrongPort(ClientError, code="wrong_port"):
    """What answers at that address speaks another protocol: HTTP, gRPC, TLS."""


class TlsFailed(ClientError, code="tls_failed"):
    """The TLS handshake with the broker failed: one of the two certificates is not accepted, or one side has no TLS."""


class SlowConsumer(ClientError, code="slow_consumer"):
    """The application did not take messages before the buffer was full."""


class SubscriptionStalled(ClientError, code="subscription_stalled", retryable=True):
    """Messages wait that the broker cannot deliver now; the message says why."""


class ConsumerClosed(ClientError, code="consumer_closed"):
    """The broker ended the consumer: it was deleted, or another one of its name came."""


class ClientClosed(ClientError, code="client_closed"):
    """The client was closed."""


def _by_code(kind: type[IcestreamError]) -> dict[str, type[IcestreamError]]:
    by_code = {kind.code: kind}
    for child in kind.__subclasses__():
        by_code.update(_by_code(child))
    return by_code


# Every kind by its code: how an error that travelled over a wire becomes itself again.
BY_CODE: dict[str, type[IcestreamError]] = _by_code(IcestreamError)
