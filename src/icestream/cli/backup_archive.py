"""`icestream backup archive`, and restores to a point in time."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from icestream import errors, limits
from icestream.cli.backup_stores import KeyOption, TargetOption, key_source_of, location_of, with_target
from icestream.cli.commands import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch, load_settings
from icestream.cli.output import Output, OutputFormat, print_note
from icestream.cli.positions import parse_position, time_text
from icestream.cli.progress_bar import share_bar
from icestream.observability.words import counted

if TYPE_CHECKING:
    from icestream.backup.archive_object import ArchiveHead
    from icestream.backup.backup_root import BackupRoot
    from icestream.backup.stored_archive import ArchiveFinding
    from icestream.backup.stored_backups import StoredBackups
    from icestream.processes.point_in_time import Cut
    from icestream.settings import Settings

app = Commands("Show and verify the archives of a target.")
EXIT_INCOMPLETE: Final = 14
_COLUMNS: Final = ("node", "log", "until", "age_seconds", "objects", "last", "bases", "gaps")
_FINDING_COLUMNS: Final = ("object", "severity", "text")
_OFFSET: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")


@app.command()
def status(
    to: TargetOption = None,
    _watch: Watch = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show how far the archive of each node goes, and which times it lacks.

    `age` is what a disaster now would lose, but for an idle node: its archive is marked each minute. `bases` are
    backups that a restore to a point in time can begin with; without one the archive is of no use yet.

    Example: icestream backup archive status --to /backup
    """
    from icestream.backup.stored_archive import bases_of, stored_heads

    settings = load_settings(config, sets).settings

    async def read(stored: StoredBackups) -> tuple[list[ArchiveHead], list[BackupRoot]]:
        roots = [backup.root for backup in await stored.backups() if backup.root is not None]
        return await stored_heads(stored.target), roots

    location = _archive_location(to, settings)
    heads, roots = with_target(settings, location, None, read)
    answer = Output(output)
    now_us = time.time_ns() // 1_000
    rows: list[list[Any]] = []
    for head in heads:
        bases = bases_of(head, roots)
        until = time_text(head.until_us)
        age = max(0.0, (now_us - head.until_us) / 1e6)
        gaps: object = [
            {"after": time_text(gap.after_us), "until": time_text(gap.until_us), "reason": gap.reason}
            for gap in head.gaps
        ]
        rows.append([
            head.node, head.log_id, until, round(age, 1), head.seq - head.first_seq + 1, head.seq,
            len(bases) if answer.is_text else bases, len(head.gaps) if answer.is_text else gaps,
        ])  # fmt: skip
    if rows or not answer.is_text:
        answer.table(_COLUMNS, rows)
    if answer.is_text:
        for head in heads:
            for gap in head.gaps:
                print_note(
                    f"gap of {head.node}: nothing between {time_text(gap.after_us)} and {time_text(gap.until_us)}: "
                    f"{gap.reason}"
                )
        if not heads:
            print_note("No archive. `backup.archive.enable` makes one.")


@app.command()
def verify(
    to: TargetOption = None,
    key: KeyOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Read every byte of the archives, and check that no object is missing, was changed or was replaced.

    Exit code 1: an error was found. 14: no error, but there are gaps.

    Example: icestream backup archive verify --to /backup
    """
    from icestream.backup.stored_archive import StoredArchive, stored_heads
    from icestream.runtime.tasks import ThreadOffload

    settings = load_settings(config, sets).settings
    offload = ThreadOffload("archive")

    async def check(stored: StoredBackups) -> list[ArchiveFinding]:
        findings = []
        for head in await stored_heads(stored.target):
            archive = StoredArchive(stored.target, head.node, head.log_id, offload, stored.key)
            with share_bar(head.node) as show:
                findings += await archive.verify(show)
        return findings

    try:
        location = _archive_location(to, settings)
        findings = with_target(settings, location, key or key_source_of(settings), check)
    finally:
        offload.close()
    answer = Output(output)
    if findings or not answer.is_text:
        answer.table(_FINDING_COLUMNS, [list(finding) for finding in findings], keep=("text",))
    error_count = sum(finding.severity == "error" for finding in findings)
    if answer.is_text:
        print_note(f"{counted(error_count, 'error')}, {counted(len(findings) - error_count, 'gap')}")
    if findings:
        raise typer.Exit(1 if error_count else EXIT_INCOMPLETE)


def _archive_location(to: str | None, settings: Settings) -> str:
    return to or settings.backup.archive.target or location_of(None, settings)


def parse_cut(to_time: str | None, to_offset: str | None, topics: list[str]) -> Cut | None:
    """The cut of --to-time or --to-offset; None without either. Raises InvalidInput."""
    if to_time is None and to_offset is None:
        return None
    from icestream.client.timestamps import to_microseconds
    from icestream.processes.point_in_time import END, CutOffset, CutTime

    if to_time is not None and to_offset is not None:
        raise errors.InvalidInput("--to-time and --to-offset are two points in time", hint="give one of them")
    if to_offset is not None:
        match = _OFFSET.fullmatch(to_offset)
        if match is None or len(topics) != 1:
            raise errors.InvalidInput(
                f"--to-offset {to_offset!r} is not SHARD:OFFSET of one topic",
                hint="such as --topics /shop/orders --to-offset 0:1200",
            )
        return CutOffset(topics[0], int(match[1]), int(match[2]))
    assert to_time is not None
    if to_time == "end":
        return END
    moment = parse_position(to_time)
    if isinstance(moment, str | int):
        raise errors.InvalidInput(
            f"--to-time {to_time!r} is not a time", hint="such as 2026-11-19T10:30:00Z, or -10m, or end"
        )
    return CutTime(to_microseconds(moment))


async def past_backup(
    settings: Settings, stored: StoredBackups, location: str, backup_id: str, cut: Cut, spool: Path
) -> tuple[StoredBackups, BackupRoot]:
    """The backup at a cut: `backup_id`, or the newest one before it, with the archive behind it. Raises InvalidInput if
    the archive does not reach the cut, UnknownBackup."""
    from icestream.backup.backup_target import open_target
    from icestream.backup.stored_archive import StoredArchive
    from icestream.processes.component_options import store_options
    from icestream.processes.point_in_time import ArchiveReplay, base_for
    from icestream.runtime.clock import SystemClock
    from icestream.runtime.randomness import SystemRandomness
    from icestream.runtime.tasks import ThreadOffload

    if backup_id == "latest":
        roots = [backup.root for backup in await stored.backups() if backup.root is not None]
    else:
        roots = [await stored.root(backup_id)]
    base = base_for(roots, cut)
    offload = ThreadOffload("archive", limits.BACKUP_UPLOADS_AT_ONCE)
    try:
        target = open_target(location, store_options(settings), SystemClock(), SystemRandomness(), offload, spool)
        (node,) = base.nodes
        archive = StoredArchive(target, node.name, node.log_id, offload, stored.key)
        folder = spool / "past"
        folder.mkdir()
        past = await ArchiveReplay(stored, base, archive, offload, folder).run(cut)
    finally:
        offload.close()
    print_note(f"from backup {base.id} and the archive behind it, to {time_text(past.root.cut_ms * 1_000)}")
    return past.stored, past.root
