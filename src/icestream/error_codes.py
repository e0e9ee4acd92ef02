"""How each error of the tree (errors.py) is said by the command line and by each protocol: one table."""

from __future__ import annotations

from typing import NamedTuple

from icestream import errors


class Said(NamedTuple):
    """How a kind of error is said: a row of the table. What is None is said as the parent says it.

    exit_code   of the command line. 0 is success, 1 an unexpected failure, 2 wrong usage
    http        the status of a problem (docs/api.md). 4xx: the request is wrong as it is; 5xx and 429: it is not
    iceberg     of Iceberg's REST protocol: the status, and the type name that its clients look at. A conflict is 409;
                what may have happened is 500 CommitStateUnknownException and nothing else, because a client that is
                told 409 deletes the files of its commit (hazard 13); a store that failed, and is known to have done
                nothing, is 503. Java's clients put "Malformed request" before every 400 but IllegalArgumentException
    grpc        the status of a call of Danube's protocol. UNAVAILABLE and RESOURCE_EXHAUSTED are what its clients try
                again, without end; anything else they raise to the application at once
    """

    exit_code: int | None = None
    http: int | None = None
    iceberg: tuple[int, str] | None = None
    grpc: str | None = None


SAID: dict[type[errors.IcestreamError], Said] = {
    errors.IcestreamError: Said(1, 500, (500, "InternalServerError"), "INTERNAL"),
    errors.ConfigurationError: Said(3, 422),
    errors.ForeignBroker: Said(http=421, iceberg=(421, "BadRequestException")),
    errors.InvalidInput: Said(4, 400, (400, "IllegalArgumentException"), "INVALID_ARGUMENT"),
    errors.MessageTooLarge: Said(http=413, iceberg=(413, "BadRequestException")),
    errors.UnknownTopic: Said(http=404, grpc="NOT_FOUND"),
    errors.TopicElsewhere: Said(http=421, grpc="UNAVAILABLE"),  # Danube's clients look the topic up again after it
    # a client that finds no namespace may come before whoever makes it: it tries again for a while
    errors.UnknownNamespace: Said(http=404, iceberg=(404, "NoSuchNamespaceException"), grpc="UNAVAILABLE"),
    errors.UnknownSubscription: Said(http=404, grpc="NOT_FOUND"),
    **dict.fromkeys(
        (errors.UnknownHandle, errors.UnknownSetting, errors.UnknownLogFile, errors.NotConnected), Said(http=404)
    ),
    errors.UnknownProducer: Said(http=404, grpc="UNAVAILABLE"),
    errors.UnknownTable: Said(http=404, iceberg=(404, "NoSuchTableException")),
    errors.UnknownView: Said(http=404, iceberg=(404, "NoSuchViewException")),
    errors.AlreadyExists: Said(http=409, iceberg=(409, "AlreadyExistsException"), grpc="ALREADY_EXISTS"),
    errors.NotEmpty: Said(http=409, iceberg=(409, "NamespaceNotEmptyException"), grpc="FAILED_PRECONDITION"),
    errors.TopicMismatch: Said(http=409, grpc="FAILED_PRECONDITION"),
    errors.UnknownSchema: Said(http=404, grpc="NOT_FOUND"),
    errors.SchemaMismatch: Said(http=409, grpc="FAILED_PRECONDITION"),
    errors.SchemaIncompatible: Said(http=409, grpc="INTERNAL"),  # as Danube says it
    errors.SchemaViolated: Said(http=422, grpc="PERMISSION_DENIED"),
    errors.PolicyReached: Said(http=409, grpc="RESOURCE_EXHAUSTED"),
    errors.SubscriptionTaken: Said(http=409, grpc="PERMISSION_DENIED"),
    errors.OutOfOrderSequence: Said(http=409, grpc="FAILED_PRECONDITION"),
    errors.ProducerFenced: Said(http=409, grpc="FAILED_PRECONDITION"),
    errors.CommitConflict: Said(http=409, iceberg=(409, "CommitFailedException")),
    errors.TopicTableConflict: Said(http=403, iceberg=(403, "ForbiddenException")),
    errors.Contradiction: Said(http=422, iceberg=(422, "UnprocessableEntityException")),
    errors.PersistentStorageError: Said(iceberg=(503, "ServiceUnavailableException")),
    errors.Refused: Said(5, 503, grpc="UNAVAILABLE"),
    errors.InFlightFull: Said(http=429),
    errors.RateReached: Said(http=429),
    errors.NodeQuotaReached: Said(http=507, grpc="RESOURCE_EXHAUSTED"),
    errors.TopicQuotaReached: Said(http=507, grpc="RESOURCE_EXHAUSTED"),
    errors.DiskFull: Said(http=507, grpc="RESOURCE_EXHAUSTED"),
    errors.MetadataFull: Said(http=507),
    errors.OutcomeUnknown: Said(6, 504, (500, "CommitStateUnknownException"), "UNAVAILABLE"),
    errors.StorageUnavailable: Said(12, 503, grpc="UNAVAILABLE"),
    errors.AccessDenied: Said(13, 502),
    errors.UnexpectedAnswer: Said(http=502),
    errors.PositionGone: Said(7, 410, grpc="OUT_OF_RANGE"),
    errors.LeaseLost: Said(7, 410),
    errors.TableUnreadable: Said(http=422, grpc="FAILED_PRECONDITION"),
    errors.MetadataDamaged: Said(iceberg=(422, "UnprocessableEntityException")),
    errors.MetadataFileMissing: Said(http=404, iceberg=(404, "NotFoundException")),
    errors.MetadataFileDamaged: Said(iceberg=(422, "UnprocessableEntityException")),
    errors.LogError: Said(10),
    errors.LogLocked: Said(8),
    errors.LogClosed: Said(grpc="UNAVAILABLE"),
    errors.LogStopped: Said(grpc="UNAVAILABLE"),
    errors.LogDamaged: Said(9),
    errors.StaleRead: Said(http=503),
    errors.SubscriptionStalled: Said(grpc="UNAVAILABLE"),  # the status of a stream; its client opens it again
    errors.ConnectionLost: Said(11, 503, grpc="UNAVAILABLE"),
    errors.WrongPort: Said(11, 502, grpc="UNAVAILABLE"),
}


def exit_code(error: errors.IcestreamError) -> int:
    return next(code for row in _rows(error) if (code := row.exit_code) is not None)


def http_status(error: errors.IcestreamError) -> int:
    return next(status for row in _rows(error) if (status := row.http) is not None)


def iceberg_error(error: errors.IcestreamError) -> tuple[int, str]:
    return next(said for row in _rows(error) if (said := row.iceberg) is not None)


def grpc_status(error: errors.IcestreamError) -> str:
    return next(status for row in _rows(error) if (status := row.grpc) is not None)


def _rows(error: errors.IcestreamError) -> list[Said]:
    """Its own and its parents', the nearest first."""
    return [SAID[kind] for kind in type(error).__mro__ if kind in SAID]
