"""Erasures as the broker sees them: one request at a time for the driver, its log, the signed report (ADR 119, 121).

A request is in memory alone: it names a person. The driver fetches it, also again after a restart of its own; a restart
of the broker ends it, and the command says so. What is stored:

    /erasures/log/{log id}                   RetiredLog: files of this log with lower numbers never become spares. Not
                                             by node: one that rejoins has the log of its predecessor
    /erasures/reports/{topic id}/{time ms}   the signed report of a finished erasure; the last ERASURE_REPORTS_MAX
    data_dir/erasure.key                     32 random bytes: the Ed25519 key of reports, the key of predicate hashes
"""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from icestream import errors, limits
from icestream.metadata.store import MetadataStore
from icestream.model.erasure_messages import (
    ErasureFindings,
    ErasureMode,
    ErasureProgress,
    ErasureRequest,
    HistoryChoice,
    request_key,
)
from icestream.model.erasure_places import NOT_COVERED
from icestream.model.erasure_predicate import parse_predicate
from icestream.model.shard import ShardKey
from icestream.observability.log import get_logger
from icestream.runtime.clock import Clock
from icestream.wal.write_ahead_log import WriteAheadLog

COMMIT_NOW_KEY: Final = "/pipeline/commit_now"
LOGS: Final = "/erasures/log/"
REPORTS: Final = "/erasures/reports/"
_log = get_logger("erasure")
_REQUEST_TTL_MS: Final = 3_600_000


class RetiredLog(msgspec.Struct, frozen=True):
    retired_below: int


class RetainedMessages(Protocol):
    """The retained messages of MQTT, each with the row that it was taken from. They have a log of their own: a shard of
    the state topic."""

    @property
    def retained_shard(self) -> ShardKey: ...

    async def retained_places(self, topic_id: int) -> list[tuple[int, int]]: ...

    async def forget_retained(self, topic_id: int, places: AbstractSet[tuple[int, int]]) -> int: ...


class ErasureService:
    """The erasures of one broker: of topics that it serves, whose messages are in its log alone (ADR 32, 129)."""

    def __init__(
        self,
        log: WriteAheadLog,
        store: MetadataStore,
        clock: Clock,
        key_file: Path,
        node: str,
        lease_name: str = "",
        retained: RetainedMessages | None = None,
    ) -> None:
        """`lease_name`: of the lease of this node's driver; empty for a single node. `retained`: those of MQTT; None:
        there are none."""
        self._wal = log
        self._store = store
        self._clock = clock
        self._key_file = key_file
        self._node = node
        self._retained = retained
        self._request_key = request_key(lease_name)
        self._log_key = f"{LOGS}{log.log_id.hex()}"
        self._request: ErasureRequest | None = None
        self._progress: ErasureProgress | None = None
        self._report: dict[str, Any] | None = None
        self._start_ms = 0
        self._dead_letters: list[str] = []
        self._heard_ns = 0
        self._retired: tuple[str, int] | None = None  # of this request: from which number on files are new

    async def start(self) -> None:
        """Has the log go on with a retirement that a restart cut off."""
        entry = await self._store.get(self._log_key)
        if entry is not None:
            retired = msgspec.json.decode(entry.value, type=RetiredLog)
            self._wal.lifecycle.retired_below = max(self._wal.lifecycle.retired_below, retired.retired_below)

    # --- requests ---

    async def begin(
        self,
        topic_id: int,
        topic: str,
        shards: int,
        where: str,
        mode: ErasureMode,
        *,
        history: HistoryChoice,
        dead_letters: Sequence[str] = (),
    ) -> ErasureRequest:
        """Takes a request, and wakes the driver. `dead_letters`: topics that may have copies, for the report.

        Raises AlreadyExists while another one is under way, InvalidInput for a predicate that is not understood."""
        parse_predicate(where)
        silent_ns = self._clock.monotonic_ns() - self._heard_ns
        if (
            self._request is not None
            and (self._progress is None or not self._progress.is_done)
            and silent_ns < limits.PIPELINE_SILENT_SECONDS * 1e9
        ):
            raise errors.AlreadyExists(
                f"an erasure of topic {self._request.topic} is under way", hint="wait until it has ended"
            )
        await self._wal.sync()
        keys = [ShardKey(topic_id, number) for number in range(shards)]
        ends = {key.shard: self._wal.state.shards[key].synced for key in keys if key in self._wal.state.shards}
        request = ErasureRequest(str(uuid.uuid4()), topic_id, topic, where, mode, history, ends)
        self._request, self._progress, self._report, self._retired = request, ErasureProgress(request.id), None, None
        self._dead_letters = [*dead_letters]
        self._start_ms, self._heard_ns = self._clock.wall_us() // 1000, self._clock.monotonic_ns()
        await self._store.put_with_ttl(COMMIT_NOW_KEY, b"", 60_000)
        await self._store.put_with_ttl(self._request_key, request.id.encode(), _REQUEST_TTL_MS)
        return request

    def next_request(self) -> ErasureRequest | None:
        """The request that is not finished, for the driver."""
        if self._progress is None or self._progress.is_done:
            return None
        self._heard_ns = self._clock.monotonic_ns()
        return self._request

    async def report(self, progress: ErasureProgress) -> bool:
        """Takes the driver's progress; False if it is of no present request."""
        request = self._request
        if request is None or request.id != progress.id or self._progress is None or self._progress.is_done:
            return request is not None and request.id == progress.id
        self._heard_ns = self._clock.monotonic_ns()
        if progress.is_done and not progress.error:
            # Before the progress counts: a command that sees the end gets the report with it.
            self._report = await self._signed_report(request, progress.findings)
        self._progress = progress
        if progress.is_done:
            await self._store.delete(self._request_key)
        return True

    def progress(self, request_id: str) -> tuple[ErasureProgress, dict[str, Any] | None]:
        """Progress, and the signed report of an erasure that has ended. Raises InvalidInput for a request of which
        this broker knows nothing."""
        if self._progress is None or self._progress.id != request_id:
            raise errors.InvalidInput(
                "the broker knows nothing of this erasure: it was restarted, or another erasure was begun",
                hint="run the command again: it goes on where the erasure ended",
            )
        return self._progress, self._report

    # --- the log ---

    async def retire_log(self, topic_id: int, cut: Mapping[int, int], *, is_check: bool) -> list[str]:
        """Retires the log files that have rows of a topic below the cut. Returns what is left, in words."""
        lifecycle = self._wal.lifecycle
        ends = {ShardKey(topic_id, shard): end for shard, end in cut.items()}
        left: list[str] = []
        if not is_check:
            request_id = self._request.id if self._request is not None else ""
            if self._retired is None or self._retired[0] != request_id:
                retired_below = await self._wal.retire_files()
                await self._store.put(self._log_key, msgspec.json.encode(RetiredLog(retired_below)))
                self._retired = request_id, retired_below
            else:
                await self._wal.retire_files(self._retired[1])
        elif await self._store.get(self._log_key) is None:
            left.append("log: its files were never retired; erase again")
        for number in sorted({*lifecycle.files_below(ends), *self._files_of_retained()}):
            topics = lifecycle.topics_that_need(number)
            left.append(
                f"log: file {number} is kept for {', '.join(topics) if topics else 'readers, a backup or the archive'}"
            )
        return left[: limits.ERASURE_LISTED_MAX]

    def _files_of_retained(self) -> list[int]:
        """Files of before the retirement with values of the retained messages that were written again since."""
        key = None if self._retained is None else self._retained.retained_shard
        if key is None or key not in self._wal.state.shards:
            return []
        below = self._wal.lifecycle.files_below({key: self._wal.state.shards[key].floor})
        return [number for number in below if number < self._wal.lifecycle.retired_below]

    # --- retained messages ---

    async def retained_places(self, topic_id: int) -> list[tuple[int, int]]:
        """Shard and offset of the rows that are retained messages of MQTT, in order."""
        return [] if self._retained is None else await self._retained.retained_places(topic_id)

    async def forget_retained(self, topic_id: int, places: AbstractSet[tuple[int, int]]) -> int:
        """Drops retained messages of erased rows; returns how many. Raises NotReady."""
        return 0 if self._retained is None else await self._retained.forget_retained(topic_id, places)

    # --- reports ---

    async def _signed_report(self, request: ErasureRequest, findings: ErasureFindings) -> dict[str, Any]:
        seed = self._seed()
        kind = {ErasureMode.DRY_RUN: "dry run", ErasureMode.ERASE: "erasure", ErasureMode.CHECK: "check"}[request.mode]
        now_ms = self._clock.wall_us() // 1000
        report: dict[str, Any] = {
            "kind": kind,
            "id": request.id,
            "node": self._node,
            "topic": request.topic,
            "topic_id": request.topic_id,
            # A keyed hash: it tells whether two reports are about the same predicate, and names no person.
            "predicate_hmac_sha256": hmac.new(seed, request.where.encode(), hashlib.sha256).hexdigest(),
            "start_ms": self._start_ms,
            "end_ms": now_ms,
            **msgspec.to_builtins(findings),
            "dead_letter_topics": self._dead_letters,
            "not_covered": list(NOT_COVERED),
        }
        report["is_final"] = not (findings.pending or findings.must_do or findings.left)
        document = sign_report(report, seed)
        if request.mode is not ErasureMode.DRY_RUN:
            prefix = f"{REPORTS}{request.topic_id}/"
            await self._store.put(f"{prefix}{now_ms:013d}", msgspec.json.encode(document))
            stored = await self._store.list_all(prefix)
            for key, _ in stored[: max(0, len(stored) - limits.ERASURE_REPORTS_MAX)]:
                await self._store.delete(key)
        return document

    def _seed(self) -> bytes:
        """The key of this node, made with the first report. Raises ConfigurationError for a file that is none."""
        try:
            seed = self._key_file.read_bytes()
        except FileNotFoundError:
            seed = os.urandom(32)
            descriptor = os.open(self._key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(seed)
                file.flush()
                os.fsync(descriptor)
        if len(seed) != 32:
            raise errors.ConfigurationError(
                f"{self._key_file} is not a key of 32 bytes", hint="remove it: the next report gets a new key"
            )
        return seed

    @property
    def public_key(self) -> str:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._seed()).public_key().public_bytes_raw().hex()


def signed_bytes(report: Mapping[str, Any]) -> bytes:
    """What is signed: the report as JSON with sorted keys, without blanks."""
    return msgspec.json.encode(report, order="deterministic")


def sign_report(report: dict[str, Any], seed: bytes) -> dict[str, Any]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    return {
        "report": report,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(signed_bytes(report)).hex(),
    }


def is_signed(document: Mapping[str, Any]) -> bool:
    """Whether a report has the signature of the key that it names. Whose key that is, the caller compares."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(document["public_key"]))
        key.verify(bytes.fromhex(document["signature"]), signed_bytes(document["report"]))
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return False
    return True
