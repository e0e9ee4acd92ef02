"""The codes by which the command line and each protocol report an error of the tree (errors.py): one table."""

from __future__ import annotations

from typing import NamedTuple

from icestream import errors


class WireCodes(NamedTuple):
    """How a kind of error is reported: a row of the table. None: as its parent class.

    exit_code   of the command line. 0 is success, 1 an unexpected failure, 2 wrong usage
    http        the status of a problem (docs/api.md). 4xx: the request itself is wrong; 5xx and 429: it is not
    iceberg     of Iceberg's REST protocol: the status, and the type name that its clients look at. A conflict is 409;
                an unknown outcome is 500 CommitStateUnknownException and nothing else, because a client that gets 409
                deletes the files of its commit (hazard 13); a store that failed, and is known to have done nothing, is
                503. Java's clients put "Malformed request" before every 400 but IllegalArgumentException
    grpc        the status of a call of Danube's protocol. Its clients retry UNAVAILABLE and RESOURCE_EXHAUSTED without
                end; anything else they raise to the application at once
    mqtt        the reason code of 5.0. A packet that may not carry it has the nearest that it may, and CONNACK of 3.1.1
                a return code (mqtt/reason_codes.py). PacketRefused names its own
    """

    exit_code: int | None = None
    http: int | None = None
    iceberg: tuple[int, str] | None = None
    grpc: str | None = None
    mqtt: int | None = None


WIRE_CODES: dict[type[errors.IcestreamError], WireCodes] = {
    errors.IcestreamError: WireCodes(1, 500, (500, "InternalServerError"), "INTERNAL", 0x80),
    errors.ConfigurationError: WireCodes(3, 422),
    errors.ForeignBroker: WireCodes(http=421, iceberg=(421, "BadRequestException")),
    errors.InvalidInput: WireCodes(4, 400, (400, "IllegalArgumentException"), "INVALID_ARGUMENT", 0x83),
    errors.MessageTooLarge: WireCodes(http=413, iceberg=(413, "BadRequestException"), mqtt=0x95),
    errors.UnknownTopic: WireCodes(http=404, grpc="NOT_FOUND", mqtt=0x90),
    # Danube's clients look the topic up again after it.
    errors.TopicElsewhere: WireCodes(http=421, grpc="UNAVAILABLE", mqtt=0x9C),
    # The client may be faster than the one that creates the namespace: it retries for a while.
    errors.UnknownNamespace: WireCodes(http=404, iceberg=(404, "NoSuchNamespaceException"), grpc="UNAVAILABLE"),
    errors.UnknownSubscription: WireCodes(http=404, grpc="NOT_FOUND"),
    **dict.fromkeys(
        (
            errors.UnknownHandle,
            errors.UnknownSetting,
            errors.UnknownAccount,
            errors.UnknownLogFile,
            errors.UnknownSession,
            errors.UnknownBackup,
            errors.NotConnected,
        ),
        WireCodes(http=404),
    ),
    errors.UnknownProducer: WireCodes(http=404, grpc="UNAVAILABLE"),
    errors.UnknownTable: WireCodes(http=404, iceberg=(404, "NoSuchTableException")),
    errors.UnknownView: WireCodes(http=404, iceberg=(404, "NoSuchViewException")),
    errors.UnknownWarehouse: WireCodes(http=404, iceberg=(404, "NoSuchWarehouseException")),
    errors.AlreadyExists: WireCodes(http=409, iceberg=(409, "AlreadyExistsException"), grpc="ALREADY_EXISTS"),
    errors.NotEmpty: WireCodes(http=409, iceberg=(409, "NamespaceNotEmptyException"), grpc="FAILED_PRECONDITION"),
    errors.TopicMismatch: WireCodes(http=409, grpc="FAILED_PRECONDITION"),
    errors.UnknownSchema: WireCodes(http=404, grpc="NOT_FOUND"),
    errors.SchemaMismatch: WireCodes(http=409, grpc="FAILED_PRECONDITION"),
    errors.SchemaIncompatible: WireCodes(http=409, grpc="INTERNAL"),  # as Danube says it
    errors.SchemaViolated: WireCodes(http=422, grpc="PERMISSION_DENIED", mqtt=0x99),
    errors.PolicyReached: WireCodes(http=409, grpc="RESOURCE_EXHAUSTED", mqtt=0x97),
    errors.SubscriptionTaken: WireCodes(http=409, grpc="PERMISSION_DENIED"),
    errors.OutOfOrderSequence: WireCodes(http=409, grpc="FAILED_PRECONDITION"),
    errors.ProducerFenced: WireCodes(http=409, grpc="FAILED_PRECONDITION"),
    errors.SessionFenced: WireCodes(http=409, grpc="FAILED_PRECONDITION", mqtt=0x8E),
    errors.CommitConflict: WireCodes(http=409, iceberg=(409, "CommitFailedException")),
    errors.TopicTableConflict: WireCodes(http=403, iceberg=(403, "ForbiddenException")),
    errors.Contradiction: WireCodes(http=422, iceberg=(422, "UnprocessableEntityException")),
    errors.Unauthenticated: WireCodes(15, 401, (401, "NotAuthorizedException"), "UNAUTHENTICATED", 0x86),
    errors.PermissionDenied: WireCodes(16, 403, (403, "ForbiddenException"), "PERMISSION_DENIED", 0x87),
    errors.PersistentStorageError: WireCodes(iceberg=(503, "ServiceUnavailableException")),
    errors.Refused: WireCodes(5, 503, grpc="UNAVAILABLE", mqtt=0x89),
    errors.InFlightFull: WireCodes(http=429, mqtt=0x97),
    errors.RateReached: WireCodes(http=429, mqtt=0x96),
    errors.ShuttingDown: WireCodes(mqtt=0x8B),
    errors.NodeQuotaReached: WireCodes(http=507, grpc="RESOURCE_EXHAUSTED", mqtt=0x97),
    errors.TopicQuotaReached: WireCodes(http=507, grpc="RESOURCE_EXHAUSTED", mqtt=0x97),
    errors.DiskFull: WireCodes(http=507, grpc="RESOURCE_EXHAUSTED", mqtt=0x97),
    errors.MetadataFull: WireCodes(http=507, mqtt=0x97),
    errors.NotReady: WireCodes(mqtt=0x88),
    errors.OutcomeUnknown: WireCodes(6, 504, (500, "CommitStateUnknownException"), "UNAVAILABLE"),
    errors.StorageUnavailable: WireCodes(12, 503, grpc="UNAVAILABLE", mqtt=0x88),
    errors.AccessDenied: WireCodes(13, 502),
    errors.UnexpectedAnswer: WireCodes(http=502),
    errors.PositionGone: WireCodes(7, 410, grpc="OUT_OF_RANGE"),
    errors.LeaseLost: WireCodes(7, 410),
    errors.TableUnreadable: WireCodes(http=422, grpc="FAILED_PRECONDITION"),
    errors.MetadataDamaged: WireCodes(iceberg=(422, "UnprocessableEntityException")),
    errors.MetadataFileMissing: WireCodes(http=404, iceberg=(404, "NotFoundException")),
    errors.MetadataFileDamaged: WireCodes(iceberg=(422, "UnprocessableEntityException")),
    errors.LogError: WireCodes(10),
    errors.LogLocked: WireCodes(8),
    errors.LogClosed: WireCodes(grpc="UNAVAILABLE", mqtt=0x88),
    errors.LogStopped: WireCodes(grpc="UNAVAILABLE", mqtt=0x88),
    errors.LogDamaged: WireCodes(9),
    errors.StaleRead: WireCodes(http=503, mqtt=0x88),
    errors.SubscriptionStalled: WireCodes(grpc="UNAVAILABLE"),  # the status of a stream; its client opens it again
    errors.ConnectionLost: WireCodes(11, 503, grpc="UNAVAILABLE"),
    errors.WrongPort: WireCodes(11, 502, grpc="UNAVAILABLE"),
    errors.TlsFailed: WireCodes(11, 502, grpc="UNAVAILABLE"),
}


def exit_code(error: errors.IcestreamError) -> int:
    return next(code for row in _rows(error) if (code := row.exit_code) is not None)


def http_status(error: errors.IcestreamError) -> int:
    return next(status for row in _rows(error) if (status := row.http) is not None)


def iceberg_error(error: errors.IcestreamError) -> tuple[int, str]:
    return next(code for row in _rows(error) if (code := row.iceberg) is not None)


def grpc_status(error: errors.IcestreamError) -> str:
    return next(status for row in _rows(error) if (status := row.grpc) is not None)


def mqtt_reason(error: errors.IcestreamError) -> int:
    if isinstance(error, errors.PacketRefused):
        return error.reason_code
    return next(reason for row in _rows(error) if (reason := row.mqtt) is not None)


def _rows(error: errors.IcestreamError) -> list[WireCodes]:
    """Its own and its parents', the nearest first."""
    return [WIRE_CODES[kind] for kind in type(error).__mro__ if kind in WIRE_CODES]
