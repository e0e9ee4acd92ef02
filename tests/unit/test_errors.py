"""The tree of errors: what a caller, a person and a shell can tell from one. Its drawing is checked in tests/tidy."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import grpc
import pytest

from icestream import error_codes, errors
from icestream.mqtt.reason_codes import (
    CONNACK_CODES,
    DISCONNECT_CODES,
    FAILURE,
    PUBACK_CODES,
    SUBACK_CODES,
    UNSUBACK_CODES,
    connack_return_code,
    nearest_reason,
)

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.IcestreamError)]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def test_every_code_belongs_to_one_kind() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(set(codes)) == len(codes)


@every_kind
def test_message_and_hint_are_kept_apart_and_shown_together(kind: type[errors.IcestreamError]) -> None:
    error = kind("what happened", hint="what to do")
    assert (error.message, error.hint, str(error)) == ("what happened", "what to do", "what happened (what to do)")
    assert str(kind("what happened")) == "what happened"


@every_kind
def test_an_exit_code_is_never_success_or_wrong_usage(kind: type[errors.IcestreamError]) -> None:
    assert error_codes.exit_code(kind("x")) not in (0, 2)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.IcestreamError, 1),
        (errors.ConfigurationError, 3),
        (errors.InvalidInput, 4),
        (errors.ProducerFenced, 4),
        (errors.Refused, 5),
        (errors.DiskFull, 5),
        (errors.OutcomeUnknown, 6),
        (errors.PositionGone, 7),
        (errors.LogLocked, 8),
        (errors.LogDamaged, 9),
        (errors.LogError, 10),
        (errors.DecodeError, 10),
    ],
)
def test_exit_codes_do_not_change(kind: type[errors.IcestreamError], code: int) -> None:
    """Scripts depend on them."""
    assert error_codes.exit_code(kind("x")) == code


@every_kind
def test_every_protocol_has_a_status_for_every_error(kind: type[errors.IcestreamError]) -> None:
    error = kind("x")
    assert 1 <= error_codes.exit_code(error) < 128
    assert 400 <= error_codes.http_status(error) < 600
    assert 400 <= error_codes.iceberg_error(error)[0] < 600
    assert error_codes.grpc_status(error) in grpc.StatusCode.__members__
    for codes in (CONNACK_CODES, PUBACK_CODES, SUBACK_CODES, UNSUBACK_CODES, DISCONNECT_CODES):
        assert FAILURE <= nearest_reason(error_codes.mqtt_reason(error), codes) in codes
    assert 1 <= connack_return_code(error_codes.mqtt_reason(error)) <= 5


def row(kind: type[errors.IcestreamError]) -> str:
    error = kind("x")
    status, name = error_codes.iceberg_error(error)
    retry = "yes" if kind.retryable else "no"
    reason = "its own" if kind is errors.PacketRefused else f"0x{error_codes.mqtt_reason(error):02X}"
    words = [f"`{kind.code}`", retry, error_codes.http_status(error), error_codes.grpc_status(error), reason]
    words += [f"{status} {name}", error_codes.exit_code(error)]
    return f"| {' | '.join(map(str, words))} | "


def test_the_page_shows_the_whole_table_in_the_order_of_the_tree() -> None:
    shown = [line for line in PAGE.splitlines() if line.startswith("| `")]
    expected = [row(errors.BY_CODE[code]) for code in errors.BY_CODE]
    wrong = [start for start, line in zip(expected, shown, strict=False) if not line.startswith(start)]
    assert not wrong, f"docs/errors.md needs these rows, each with what it means: {wrong}"
    assert len(shown) == len(expected)
    assert all(len(line.split("|")) == 10 and line.split("|")[8].strip() for line in shown)


def test_a_row_of_wire_codes_overrides_something_once() -> None:
    for kind, row in error_codes.WIRE_CODES.items():
        parents = [error_codes.WIRE_CODES[parent] for parent in kind.__mro__[1:] if parent in error_codes.WIRE_CODES]
        for column in error_codes.WireCodes._fields:
            above = next((inherited for parent in parents if (inherited := getattr(parent, column)) is not None), None)
            assert getattr(row, column) != above or above is None, (kind, column)
        assert any(value is not None for value in row), kind
    assert None not in error_codes.WIRE_CODES[errors.IcestreamError]


def test_refused_errors_are_retryable_and_invalid_ones_are_not() -> None:
    later = (
        errors.Refused
        | errors.OutcomeUnknown
        | errors.StorageUnavailable
        | errors.EngineFailed
        | errors.StaleRead
        | errors.ConnectionLost
        | errors.SubscriptionStalled
    )
    for kind in KINDS:
        if issubclass(kind, later):
            assert kind.retryable, kind
        else:
            assert not kind.retryable, kind


@every_kind
def test_an_error_crosses_a_process_border(kind: type[errors.IcestreamError]) -> None:
    """A worker process hands it to its parent: kind, message and hint arrive."""
    error = pickle.loads(pickle.dumps(kind("what happened", hint="what to do")))
    assert (type(error), error.message, error.hint) == (kind, "what happened", "what to do")


@pytest.mark.parametrize(
    ("kind", "status", "name"),
    [
        (errors.UnknownNamespace, 404, "NoSuchNamespaceException"),
        (errors.UnknownTable, 404, "NoSuchTableException"),
        (errors.UnknownView, 404, "NoSuchViewException"),
        (errors.UnknownWarehouse, 404, "NoSuchWarehouseException"),
        (errors.MetadataFileMissing, 404, "NotFoundException"),
        (errors.AlreadyExists, 409, "AlreadyExistsException"),
        (errors.NotEmpty, 409, "NamespaceNotEmptyException"),
        (errors.CommitConflict, 409, "CommitFailedException"),
        (errors.RangeRefused, 409, "CommitFailedException"),
        (errors.TopicTableConflict, 403, "ForbiddenException"),
        (errors.Contradiction, 422, "UnprocessableEntityException"),
        (errors.InvalidInput, 400, "IllegalArgumentException"),
        (errors.NotReady, 503, "ServiceUnavailableException"),
        (errors.OutcomeUnknown, 500, "CommitStateUnknownException"),
        (errors.MetadataFileDamaged, 422, "UnprocessableEntityException"),
        (errors.MetadataDamaged, 422, "UnprocessableEntityException"),
        (errors.PersistentStorageError, 503, "ServiceUnavailableException"),
    ],
)
def test_iceberg_clients_get_iceberg_errors(kind: type[errors.IcestreamError], status: int, name: str) -> None:
    assert error_codes.iceberg_error(kind("x")) == (status, name)


def test_hazard_13_only_a_conflict_is_409_and_only_the_unknown_is_a_state_unknown() -> None:
    """A client that is told 409 deletes the files of its commit."""
    for kind in KINDS:
        status, name = error_codes.iceberg_error(kind("x"))
        assert (name == "CommitStateUnknownException") == issubclass(kind, errors.OutcomeUnknown)
        if issubclass(kind, errors.PersistentStorageError):
            assert status != 409, kind


def test_conflict_details_cross_process_boundaries() -> None:
    error = pickle.loads(pickle.dumps(errors.RangeRefused("no", details={"positions": {"0": 7}})))
    assert (error.details, error.hint) == ({"positions": {"0": 7}}, "")
