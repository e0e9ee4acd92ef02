"""Surveys a log directory without changing it: files, seals, checkpoints. Recovery and repair start here."""

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
    """The hint for a damaged log, with the commands as they have to be typed."""
    path = directory.describe("").rstrip("/")
    return (
        f"nothing was changed; `icestream wal inspect {path}` shows the log, `icestream wal repair {path}` lists "
        "what is lost"
    )


@dataclass(slots=True)
class SurveyedFile:
    """A log or spill file with its header, and its seal if it has one."""

    name: str
    number: int
    size: int
    header: FileHeader
    seal: Seal | None


class Required(NamedTuple):
    """The log file that must exist, and the evidence for it (log_file.py: the current file)."""

    number: int
    evidence: str


@dataclass(slots=True)
class Survey:
    """The contents of a log directory."""

    files: list[SurveyedFile] = field(default_factory=list)  # by number, without those that a copy replaces
    replaced: list[str] = field(default_factory=list)
    spills: list[SurveyedFile] = field(default_factory=list)  # by number; each has its seal
    bad_spills: list[tuple[str, str]] = field(default_factory=list)  # name and reason
    spares: dict[str, int] = field(default_factory=dict)  # name and size
    unfinished: list[str] = field(default_factory=list)  # temporary files of a process that crashed
    repair_decided: bool = False  # a repair was interrupted after its point of no return: it must be run again
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
        """The highest LSN that a checkpoint covers; also of one that cannot be read, because its name contains it."""
        bad_lsns = [log_file.checkpoint_lsn(name) or 0 for name in self.bad_checkpoints]
        return max([0, *(checkpoint.lsn for checkpoint in self.kept), *bad_lsns])


def survey(directory: Directory) -> Survey:
    """Reads every header, seal and checkpoint. Raises LogDamaged if the files belong to several logs."""
    contents = Survey()
    names = directory.names()
    contents.sync_failed = log_file.SYNC_FAILED_NAME in names
    contents.repair_decided = log_file.REPAIR_NAME in names
    contents.unfinished = list(filter(log_file.is_unfinished, names))
    # Names sort by LSN and serial, so the newest checkpoint comes first; the first good one is used.
    for name in sorted(names, reverse=True):
        if log_file.checkpoint_lsn(name) is not None:
            _read_checkpoint(directory, name, contents)
    for name in names:
        if (number := log_file.log_number(name)) is not None:
            _read_log_file(directory, name, number, contents)
        elif (number := log_file.spill_number(name)) is not None:
            _read_spill_file(directory, name, number, contents)
        elif (number := log_file.spare_number(name)) is not None:
            contents.spares[name] = _file_size(directory, name)
            contents.number_max = max(contents.number_max, number)
    # Numbers of files that are gone count too: a number is never used twice, else old bytes could pass for new ones.
    if contents.checkpoint:
        contents.number_max = max(contents.number_max, contents.checkpoint.next_file_number - 1)
    contents.required = max(_requirements(contents), default=None)
    if contents.required:
        contents.number_max = max(contents.number_max, contents.required.number)
    _separate_replaced(contents)
    _check_one_log(directory, contents)
    return contents


def _requirements(contents: Survey) -> Iterator[Required]:
    """What other files and the checkpoint say about the file that must exist."""
    for file in contents.files:
        if file.header.current:
            yield Required(file.header.current, f"{file.name} was prepared while it got records")
        if file.seal is not None and file.seal.next_number:
            yield Required(file.seal.next_number, f"the seal of {file.name} says that the log goes on in it")
    if contents.checkpoint and contents.checkpoint.current:
        name = contents.kept[0].name
        yield Required(contents.checkpoint.current, f"{name} says that it was to get the next record")


def _file_size(directory: Directory, name: str) -> int:
    file = directory.open(name)
    try:
        return file.size()
    finally:
        file.close()


def _read_checkpoint(directory: Directory, name: str, contents: Survey) -> None:
    file = directory.open(name)
    try:
        checkpoint = decode_checkpoint(file.read_at(0, file.size()))
        # A copied or renamed checkpoint would state floors of another moment, and files that are still needed would be
        # freed.
        if checkpoint.lsn != log_file.checkpoint_lsn(name):
            raise errors.DecodeError("name and content differ")
    except errors.DecodeError:
        contents.bad_checkpoints.append(name)
        return
    finally:
        file.close()
    contents.kept.append(KeptCheckpoint.of(name, checkpoint))
    contents.checkpoint = contents.checkpoint or checkpoint


def _read_log_file(directory: Directory, name: str, number: int, contents: Survey) -> None:
    contents.number_max = max(contents.number_max, number)
    try:
        contents.files.append(_read_first_page(directory, name, number))
    except errors.DecodeError as error:
        contents.bad_headers.append((name, str(error)))


def _read_spill_file(directory: Directory, name: str, number: int, contents: Survey) -> None:
    contents.number_max = max(contents.number_max, number)
    try:
        file = _read_first_page(directory, name, number)
        if file.seal is None or file.size < file.seal.end_position:
            raise errors.DecodeError("spill file is incomplete")  # it was complete before it got its name
        contents.spills.append(file)
    except errors.DecodeError as error:
        contents.bad_spills.append((name, str(error)))


def _read_first_page(directory: Directory, name: str, number: int) -> SurveyedFile:
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


def _separate_replaced(contents: Survey) -> None:
    """Moves files that a copy replaces to `replaced`: a recovery crashed before it removed the original."""
    replaced = {file.header.replaces for file in contents.files if file.header.replaces}
    contents.replaced = [file.name for file in contents.files if file.number in replaced]
    names = {log_file.log_name(number) for number in replaced}
    # An original with a bad header is no damage if a copy replaces it: the copy was complete and synced before it got
    # its name.
    contents.replaced += [name for name, _ in contents.bad_headers if name in names]
    contents.bad_headers = [(name, reason) for name, reason in contents.bad_headers if name not in names]
    contents.files = [file for file in contents.files if file.number not in replaced]
    merged = {file.header.replaces for file in contents.spills}
    contents.replaced += [file.name for file in contents.spills if file.number in merged]
    contents.spills = [file for file in contents.spills if file.number not in merged]
    merged_names = {log_file.spill_name(number) for number in merged}
    contents.replaced += [name for name, _ in contents.bad_spills if name in merged_names]
    contents.bad_spills = [(name, reason) for name, reason in contents.bad_spills if name not in merged_names]


def _check_one_log(directory: Directory, contents: Survey) -> None:
    """Raises LogDamaged if headers and checkpoint have different log ids: files of two logs were mixed."""
    ids = {file.header.log_id for file in (*contents.files, *contents.spills)}
    if contents.checkpoint:
        ids.add(contents.checkpoint.log_id)
    if len(ids) > 1:
        raise errors.LogDamaged(
            f"{directory.describe('')} holds files of {len(ids)} different logs",
            hint="move the files that do not belong here out of the directory",
        )
    contents.log_id = next(iter(ids), None)
