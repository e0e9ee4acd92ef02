"""The ledger of erased offsets in a backup target (ADR 124): what was erased, for restores of backups made before.

    erased/<log id>/<topic id>/<SHA-256 of the offsets>.json      an ErasedLedger, created exclusively, never changed

Each has all offsets that were erased from a topic so far, so they are united, and an older one takes nothing away. It
has numbers, and nothing of a message. Deleting backups leaves it: a backup that was copied away may come back.

Topic ids are those of a cluster, and each of its nodes has a log. A ledger names the logs of all of them, so a backup
that another node made meets it, too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from icestream import errors
from icestream.backup.backup_target import BackupTarget
from icestream.model.erased_offsets import NOTHING_ERASED, ErasedOffsets, decode_erased
from icestream.model.topic_origin import TopicOrigin

ERASED: Final = "erased/"
_VERSION: Final = 1
_NAME: Final = re.compile(r"erased/([0-9a-f]{1,64})/([0-9]{1,19})/([0-9a-f]{64})\.json")


class ErasedLedger(msgspec.Struct, frozen=True):
    """The erased offsets of a topic at a moment. `offsets`: a side file (model/erased_offsets.py). `origins`: the
    topics that it was restored from. `logs`: those of the nodes that had the same topic ids then."""

    log_id: str
    topic_id: int
    topic: str
    origins: list[TopicOrigin]
    offsets: bytes
    format_version: int = _VERSION
    logs: list[str] = []

    @property
    def name(self) -> str:
        digest = hashlib.sha256(self.offsets).hexdigest()
        return f"{ERASED}{self.log_id}/{self.topic_id}/{digest}.json"


async def put_ledger(target: BackupTarget, ledger: ErasedLedger) -> None:
    """Writes a ledger unless the target has it."""
    if await target.size(ledger.name) is None:
        await target.put_new(ledger.name, msgspec.json.encode(ledger))


async def stored_ledgers(target: BackupTarget) -> list[ErasedLedger]:
    """All ledgers of a target. Raises BackupDamaged for one that was changed: without it erased messages would come
    back."""
    ledgers = []
    for name in sorted(await target.names(ERASED)):
        match = _NAME.fullmatch(name)
        data = await target.get(name) if match is not None else None
        if match is None or data is None:
            continue
        try:
            ledger = msgspec.json.decode(data, type=ErasedLedger)
        except msgspec.MsgspecError as error:
            raise errors.BackupDamaged(f"{name} is not a ledger of erased offsets: {error}") from None
        if ledger.format_version > _VERSION:
            raise errors.FormatUnknown(
                f"{name} has format version {ledger.format_version}, this version of Icestream reads {_VERSION}",
                hint="use the version that wrote it, or a later one",
            )
        if ledger.name != name:
            raise errors.BackupDamaged(f"{name} was changed: it has other offsets, or those of another topic")
        ledgers.append(ledger)
    return ledgers


def erased_of(ledgers: Sequence[ErasedLedger], log_id: str, topic_id: int, ends: Mapping[int, int]) -> ErasedOffsets:
    """What was erased from a topic of a backup until now, below `ends` of its shards: by its own ledgers, and by those
    of topics that were restored from it, as far as their messages are the same. Raises DecodeError."""
    logs, erased = _logs_of_cluster(ledgers, log_id), NOTHING_ERASED
    for ledger in ledgers:
        if ledger.log_id in logs and ledger.topic_id == topic_id:
            erased = erased.plus(decode_erased(ledger.offsets))
            continue
        for origin in ledger.origins:
            if origin.log_id in logs and origin.topic_id == topic_id:
                erased = erased.plus(decode_erased(ledger.offsets).below(origin.ends))
    return erased.below(ends)


def _logs_of_cluster(ledgers: Sequence[ErasedLedger], log_id: str) -> set[str]:
    """The logs of the nodes that have the same topic ids as the node of a log, as the ledgers name them."""
    logs = {log_id}
    # Until nothing is added: a log that was replaced is in a ledger with the others, its successor in a later one.
    while more := {log for ledger in ledgers if not logs.isdisjoint(ledger.logs) for log in ledger.logs} - logs:
        logs |= more
    return logs


def extended(origins: Sequence[TopicOrigin], origin: TopicOrigin, count: int) -> list[TopicOrigin]:
    """The origins of a topic that is restored from one with these origins; the newest `count`."""
    # What the source shares with its own origins, the restored topic shares as far as it has the source's messages.
    shared = [
        TopicOrigin(
            former.log_id,
            former.topic_id,
            {shard: min(end, origin.ends.get(shard, 0)) for shard, end in former.ends.items()},
        )
        for former in origins
    ]
    return [*shared, origin][-count:]
