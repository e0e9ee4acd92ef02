"""`icestream backup drill`, and the reports of drills."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icestream import limits
from icestream.cli.backup_stores import (
    BackupId,
    KeyOption,
    TargetOption,
    key_source_of,
    location_of,
    resolve_backup,
    warehouse_source,
    with_target,
)
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch, load_settings
from icestream.cli.output import Output, OutputFormat, print_note
from icestream.cli.positions import time_text
from icestream.cli.progress_bar import progress_bar
from icestream.observability.words import counted

if TYPE_CHECKING:
    from icestream.backup.drill_report import DrillReport
    from icestream.backup.stored_backups import StoredBackups
    from icestream.backup.stored_drills import StoredDrill

EXIT_FAILED: Final = 1
EXIT_INCOMPLETE: Final = 14
_TOPIC_COLUMNS: Final = ("topic", "messages", "files", "bytes", "subscriptions")
_DRILL_COLUMNS: Final = ("backup", "node", "ended", "outcome", "seconds", "messages", "findings", "signature")


def drill(
    backup_id: BackupId,
    to: TargetOption = None,
    directory: Annotated[
        Path | None,
        typer.Option("--in", metavar="DIR", help="Where the scratch broker lies; default: `backup.drill.directory`."),
    ] = None,
    key: KeyOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Restore a backup into a broker of its own, compare every message with the backup, and delete the broker.

    It needs no running broker and touches none. The signed report is kept in the target; `drills` lists them.

    Exit code 1: the backup cannot be restored as it is. 14: it can, and is itself incomplete.

    Example: icestream backup drill latest --to /backup
    """
    from icestream.backup.stored_drills import open_drill_key, put_report
    from icestream.processes.backup_drill import BackupDrill
    from icestream.runtime.clock import SystemClock
    from icestream.runtime.randomness import SystemRandomness
    from icestream.runtime.tasks import ThreadOffload

    settings = load_settings(config, sets).settings
    offload = ThreadOffload("drill", limits.RESTORE_FILES_AT_ONCE)

    async def run(stored: StoredBackups) -> tuple[DrillReport, bytes]:
        resolved = await resolve_backup(stored, backup_id)
        root = await stored.root(resolved)
        with progress_bar(resolved, max(1, 2 * root.content_bytes)) as advance:
            drill_run = BackupDrill(
                stored, warehouse_source(settings), SystemClock(), offload, node=settings.node.name,
                directory=directory or settings.backup.drill.directory, on_bytes=advance,
            )  # fmt: skip
            report = await drill_run.run(resolved)
        signed = await put_report(stored.target, report, open_drill_key(settings.data_dir, SystemRandomness()))
        return report, signed

    try:
        report, signed = with_target(settings, location_of(to, settings), key or key_source_of(settings), run)
    finally:
        offload.close()
    _show(report, signed, Output(output))
    if report.outcome != "passed":
        raise typer.Exit(EXIT_FAILED)
    if report.warnings:
        raise typer.Exit(EXIT_INCOMPLETE)


def drills(
    to: TargetOption = None,
    _watch: Watch = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the drills of a target, the oldest first, with the check of each signature.

    Signature `own`: by the key of this data directory. `other`: of another node, and unchanged. `invalid`: do not
    believe it.

    Example: icestream backup drills --to /backup
    """
    from icestream.backup.stored_drills import drill_key_id, stored_drills

    settings = load_settings(config, sets).settings

    async def read(stored: StoredBackups) -> list[StoredDrill]:
        return await stored_drills(stored.target, drill_key_id(settings.data_dir))

    answer = Output(output)
    stored = with_target(settings, location_of(to, settings), None, read)
    answer.table(_DRILL_COLUMNS, [_row(entry) for entry in stored])
    if not stored and answer.is_text:
        print_note("No drills. `icestream backup drill latest` makes one.")


def _row(entry: StoredDrill) -> list[Any]:
    report = entry.report
    if report is None:
        return [entry.name, None, None, None, None, None, None, str(entry.signature)]
    seconds, ended = round((report.ended_ms - report.started_ms) / 1_000, 1), time_text(report.ended_ms * 1_000)
    return [
        report.backup, report.node, ended, report.outcome, seconds, report.messages, len(report.findings),
        str(entry.signature),
    ]  # fmt: skip


def _show(report: DrillReport, signed: bytes, answer: Output) -> None:
    """Prints a report: with its signature as JSON, else a summary."""
    import msgspec

    if not answer.is_text:
        answer.document(msgspec.json.decode(signed))
        return
    answer.table(_TOPIC_COLUMNS, [[getattr(topic, name) for name in _TOPIC_COLUMNS] for topic in report.topics])
    for finding in report.findings:
        print_note(f"error: {finding.object}: {finding.text}")
    for warning in report.warnings:
        print_note(f"warning: {warning}")
    print_note(
        f"drill of backup {report.backup} {report.outcome}: {counted(report.messages, 'message')} compared, "
        f"restored in {report.restore_ms / 1_000:.1f} s, compared in {report.compare_ms / 1_000:.1f} s"
    )
