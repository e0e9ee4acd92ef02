"""Every error that Icestream raises on purpose, in one tree.

    IcestreamError                 code              retryable
    ├── ConfigurationError         configuration     no    the settings cannot be used as they are
    ├── InvalidInput               invalid           no    the request itself is wrong; nothing was changed
    │   ├── MessageTooLarge        too_large         no
    │   ├── UnknownTopic           unknown_topic     no
    │   ├── OutOfOrderSequence     out_of_order      no    a producer skipped numbers
    │   ├── ProducerFenced         fenced            no    an older epoch of the same producer
    │   └── UnknownProducer        unknown_producer  no    its window was dropped; it must open again
    ├── Refused                    refused           yes   nothing was stored; try again later
    │   ├── InFlightFull           in_flight_full    yes
    │   ├── NodeQuotaReached       node_quota        yes
    │   ├── TopicQuotaReached      topic_quota       yes
    │   └── DiskFull               disk_full         yes
    ├── OutcomeUnknown             unknown           yes   it may or may not be stored; retry with a sequence number
    ├── PositionGone               position_gone     no    the log no longer holds that offset
    └── LogError                   log               no
        ├── LogLocked              log_locked        no    another process has this log open
        ├── LogClosed              log_closed        no
        ├── LogStopped             log_stopped       no    a sync failed: the node must restart
        ├── LogDamaged             log_damaged       no    needs `icestream wal repair`
        ├── FormatUnknown          format_unknown    no    written by a newer version
        ├── DecodeError            decode            no    bytes that are not what they claim to be
        └── StaleRead              stale_read        yes   the file was recycled while it was read

`retryable` says whether the same call may succeed later without anybody's help. `hint` says what to do, in words that
a person at a terminal can act on. `EXIT_CODES` maps the tree to exit codes of the command line; each further protocol
gets its own column in the same way, never a second tree.
"""

from __future__ import annotations

from typing import ClassVar


class IcestreamError(Exception):
    """Base of the tree: a message, a stable code, a hint, and whether a retry makes sense."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigurationError(IcestreamError):
    code = "configuration"


class InvalidInput(IcestreamError):
    code = "invalid"


class MessageTooLarge(InvalidInput):
    code = "too_large"


class UnknownTopic(InvalidInput):
    code = "unknown_topic"


class OutOfOrderSequence(InvalidInput):
    code = "out_of_order"


class ProducerFenced(InvalidInput):
    code = "fenced"


class UnknownProducer(InvalidInput):
    code = "unknown_producer"


class Refused(IcestreamError):
    code = "refused"
    retryable = True


class InFlightFull(Refused):
    code = "in_flight_full"


class NodeQuotaReached(Refused):
    code = "node_quota"


class TopicQuotaReached(Refused):
    code = "topic_quota"


class DiskFull(Refused):
    code = "disk_full"


class OutcomeUnknown(IcestreamError):
    code = "unknown"
    retryable = True


class PositionGone(IcestreamError):
    code = "position_gone"


class LogError(IcestreamError):
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


# Exit codes of the command line, most specific class first. 0 is success, 1 an unexpected failure, 2 wrong usage.
EXIT_CODES: tuple[tuple[type[IcestreamError], int], ...] = (
    (ConfigurationError, 3),
    (InvalidInput, 4),
    (Refused, 5),
    (OutcomeUnknown, 6),
    (PositionGone, 7),
    (LogLocked, 8),
    (LogDamaged, 9),
    (LogError, 10),
    (IcestreamError, 1),
)


def exit_code(error: IcestreamError) -> int:
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
