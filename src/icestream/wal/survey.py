"""Looks at a log's directory without changing it: files, seals, checkpoints. Recovery and repair start here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from icestream import errors
from icestream.runtime.files import Directory
from icestream.wal import log_file
from icestream.wal.checkpoint import Checkpoint, KeptCheckpoint, decode_checkpoint
from icestream.wal.format import RECORDS_START
from icestream.wal.log_file import FileHeader, Seal


def repair_hint(directory: Directory) -> str:
    """What to do about a damaged log, with the commands as they have to be typed."""
    where = directory.describe("").rstrip("/")
    return (
        f"nothing was changed; `icestream wal inspect {where}` shows the log, `icestream wal repair {where}` lists "
        "what is lost"
    )


@dataclass(slots=True)
class SurveyedFile:
    name: str
    number: int
    size: int
    header: FileHeader
    seal: Seal | None


class Required(NamedTuple):
    """The log file that must be there, and the evidence for it (log_file.py: the current file)."""

    number: int
    evidence: str


@dataclass(slots=True)
class Survey:
    files: list[SurveyedFile] = field(default_factory=list)  # by number, without those that another one replaces
    replaced: list[str] = field(default_factory=list)
    spills: list[SurveyedFile] = field(default_factory=list)  # by number; each has its seal
    bad_spills: list[tuple[str, str]] = field(default_factory=list)  # name and reason
    spares: dict[str, int] = field(default_factory=dict)  # name and size
    unfinished: list[str] = field(default_factory=list)  # what a process that died was making
    repair_decided: bool = False  # a repair was interrupted, and must be called again
    checkpoint: Checkpoint | None = None
    kept: list[KeptCheckpoint] = field(default_factory=list)  # the good ones, newest first
    bad_checkpoints: list[str] = field(default_factory=list)
    bad_headers: list[tuple[str, str]] = field(default_factory=list)  # name and reason
    sync_failed: bool = False
    log_id: bytes | None = None
    number_max: int = 0
    required: Required | None = None

    @property
    def checkpointed_lsn(self) -> int:
        """The highest LSN that a checkpoint covers. Its name says it too, so also one that cannot be read vouches."""
        bad = [log_file.checkpoint_lsn(name) or 0 for name in self.bad_checkpoints]
        return max([0, *(kept.lsn for kept in self.kept), *bad])


def survey(directory: Directory) -> Survey:
    found = Survey()
    names = directory.names()
    found.sync_failed = log_file.SYNC_FAILED_NAME in names
    found.repair_decided = log_file.REPAIR_NAME in names
    found.unfinished = list(filter(log_file.is_unfinished, names))
    for name in sorted(names, reverse=True):
        if log_file.checkpoint_lsn(name) is not None:
            _look_at_checkpoint(directory, name, found)
    for name in names:
        if (number := log_file.log_number(name)) is not None:
            _look_at_log_file(directory, name, number, found)
        elif (number := log_file.spill_number(name)) is not None:
            _look_at_spill_file(directory, name, number, found)
        elif (number := log_file.spare_number(name)) is not None:
            found.spares[name] = _size(directory, name)
            found.number_max = max(found.number_max, number)
    if found.checkpoint:
        found.number_max = max(found.number_max, found.checkpoint.next_file_number - 1)
    found.required = max(_requirements(found), default=None)
    if found.required:
        found.number_max = max(found.number_max, found.required.number)
    _set_replaced_aside(found)
    _check_one_log(directory, found)
    return found


def _requirements(found: Survey) -> Iterator[Required]:
    for file in found.files:
        if file.header.current:
            yield Required(file.header.current, f"{file.name} was prepared while it got records")
        if file.seal is not None and file.seal.next_number:
            yield Required(file.seal.next_number, f"the seal of {file.name} says that the log goes on in it")
    if found.checkpoint and found.checkpoint.current:
        name = found.kept[0].name
        yield Required(found.checkpoint.current, f"{name} says that it was to get the next record")


def _size(directory: Directory, name: str) -> int:
    file = directory.open(name)
    try:
        return file.size()
    finally:
        file.close()


def _look_at_checkpoint(directory: Directory, name: str, found: Survey) -> None:
    file = directory.open(name)
    try:
        checkpoint = decode_checkpoint(file.read_at(0, file.size()))
        if checkpoint.lsn != log_file.checkpoint_lsn(name):
            raise errors.DecodeError("name and content differ")
    except errors.DecodeError:
        found.bad_checkpoints.append(name)
        return
    finally:
        file.close()
    found.kept.append(KeptCheckpoint.of(name, checkpoint))
    found.checkpoint = found.checkpoint or checkpoint


def _look_at_log_file(directory: Directory, name: str, number: int, found: Survey) -> None:
    found.number_max = max(found.number_max, number)
    try:
        found.files.append(_first_page(directory, name, number))
    except errors.DecodeError as error:
        found.bad_headers.append((name, str(error)))


def _look_at_spill_file(directory: Directory, name: str, number: int, found: Survey) -> None:
    found.number_max = max(found.number_max, number)
    try:
        file = _first_page(directory, name, number)
        if file.seal is None or file.size < file.seal.end_position:
            raise errors.DecodeError("it is not whole")  # it is, before it has its name
        found.spills.append(file)
    except errors.DecodeError as error:
        found.bad_spills.append((name, str(error)))


def _first_page(directory: Directory, name: str, number: int) -> SurveyedFile:
    file = directory.open(name)
    try:
        size = file.size()
        page = file.read_at(0, RECORDS_START)
    finally:
        file.close()
    header = log_file.decode_header(page)
    if header.number != number:
        raise errors.DecodeError(f"the header says file {header.number}")
    return SurveyedFile(name, number, size, header, log_file.decode_seal(page[log_file.SEAL_POSITION :], number))


def _set_replaced_aside(found: Survey) -> None:
    """A recovery that died after its copy counted left the original behind: the copy is the one that counts."""
    replaced = {file.header.replaces for file in found.files if file.header.replaces}
    found.replaced = [file.name for file in found.files if file.number in replaced]
    names = {log_file.log_name(number) for number in replaced}
    found.replaced += [name for name, _ in found.bad_headers if name in names]
    found.bad_headers = [(name, why) for name, why in found.bad_headers if name not in names]
    found.files = [file for file in found.files if file.number not in replaced]
    merged = {file.header.replaces for file in found.spills}
    found.replaced += [file.name for file in found.spills if file.number in merged]
    found.spills = [file for file in found.spills if file.number not in merged]
    gone = {log_file.spill_name(number) for number in merged}
    found.replaced += [name for name, _ in found.bad_spills if name in gone]
    found.bad_spills = [(name, why) for name, why in found.bad_spills if name not in gone]


def _check_one_log(directory: Directory, found: Survey) -> None:
    ids = {file.header.log_id for file in (*found.files, *found.spills)}
    if found.checkpoint:
        ids.add(found.checkpoint.log_id)
    if len(ids) > 1:
        raise errors.LogDamaged(
            f"{directory.describe('')} holds files of {len(ids)} different logs",
            hint="move the files that do not belong here out of the directory",
        )
    found.log_id = next(iter(ids), None)
