"""The report of a drill (ADR 114): JSON with a signature. Pure.

    drills/<UTC time>-<backup id>.json      in the target, created exclusively, never changed
    {"report": {…}, "signature": {"algorithm": "Ed25519", "key_id", "public_key", "value"}}

The signature is over the bytes of `report` as they stand in the file. `public_key` and `value` are base64; `key_id` is
the first 16 hex digits of the SHA-256 of the public key. The key in the file proves that the report is whole; that it
is of this node says the comparison with its own key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from icestream import errors

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DRILLS: Final = "drills/"
FORMAT_VERSION: Final = 1
ALGORITHM: Final = "Ed25519"
Outcome = Literal["passed", "failed"]


class DrilledShard(msgspec.Struct, frozen=True):
    """A shard as it was restored. `digest`: of its rows, in the form of model/row_digest.py."""

    shard: int
    messages: int
    next_offset: int
    digest: str


class DrilledTopic(msgspec.Struct, frozen=True):
    topic: str
    messages: int
    files: int
    bytes: int
    subscriptions: int
    shards: list[DrilledShard]


class DrillFinding(msgspec.Struct, frozen=True):
    """What differs. `object`: that of the backup, or the topic."""

    object: str
    text: str


class DrillReport(msgspec.Struct, frozen=True):
    """`warnings`: what the backup itself says that it lacks. `parts`: what was restored beside topics, by its name."""

    format_version: int
    backup: str
    kind: str
    node: str
    version: str
    started_ms: int
    ended_ms: int
    restore_ms: int
    compare_ms: int
    outcome: Outcome
    messages: int
    bytes: int
    topics: list[DrilledTopic]
    parts: dict[str, int]
    findings: list[DrillFinding]
    warnings: list[str]


class ReportSignature(msgspec.Struct, frozen=True):
    algorithm: str
    key_id: str
    public_key: str
    value: str


class SignedReport(msgspec.Struct, frozen=True):
    report: msgspec.Raw
    signature: ReportSignature


class SignatureState(StrEnum):
    """`own`: by the key of this node. `other`: by another key, and whole. `invalid`: the report was changed."""

    OWN = "own"
    OTHER = "other"
    INVALID = "invalid"


class DrillKey:
    """The key that signs reports of a node."""

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(seed)
        except ValueError:
            raise errors.ConfigurationError(
                "the key of drill reports is damaged",
                hint="remove drill.key from the data directory: a new one is made",
            ) from None
        self.public = self._key.public_key().public_bytes_raw()
        self.id = key_id_of(self.public)

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


def key_id_of(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:16]


def report_name(report: DrillReport) -> str:
    """The name of a report in the target; names sort by time."""
    moment = datetime.fromtimestamp(report.started_ms / 1000, UTC)
    return f"{DRILLS}{moment:%Y%m%dT%H%M%SZ}-{report.backup}.json"


def encode_report(report: DrillReport, key: DrillKey) -> bytes:
    """The signed report."""
    body = msgspec.json.encode(report)
    public, value = (base64.b64encode(data).decode() for data in (key.public, key.sign(body)))
    return msgspec.json.encode(SignedReport(msgspec.Raw(body), ReportSignature(ALGORITHM, key.id, public, value)))


def decode_report(name: str, data: bytes, own_key_id: str = "") -> tuple[DrillReport, SignatureState]:
    """A report, and whether its signature holds. Raises BackupDamaged for what is none."""
    try:
        signed = msgspec.json.decode(data, type=SignedReport)
        report = msgspec.json.decode(signed.report, type=DrillReport)
    except msgspec.MsgspecError as error:
        raise errors.BackupDamaged(f"{name} is not the report of a drill: {error}") from None
    if not _holds(signed):
        return report, SignatureState.INVALID
    return report, SignatureState.OWN if signed.signature.key_id == own_key_id else SignatureState.OTHER


def _holds(signed: SignedReport) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = signed.signature
    try:
        public = base64.b64decode(signature.public_key, validate=True)
        value = base64.b64decode(signature.value, validate=True)
        if signature.algorithm != ALGORITHM or signature.key_id != key_id_of(public):
            return False
        Ed25519PublicKey.from_public_bytes(public).verify(value, bytes(signed.report))
    except (binascii.Error, ValueError, InvalidSignature):
        return False
    return True


def drill_due_in_ms(started_ms: int | None, interval_ms: int, now_ms: int) -> int:
    """The ms until the next drill of a node is due; 0 if it is due now. `started_ms`: of its last one, whatever came of
    it."""
    if started_ms is None:
        return 0
    # A clock that was set back must not put drills off for longer than the interval.
    return min(max(0, started_ms + interval_ms - now_ms), interval_ms)
