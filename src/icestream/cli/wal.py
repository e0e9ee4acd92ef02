"""`icestream wal`: inspects the write-ahead log, and repairs it with an explicit list of the messages lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from icestream import errors
from icestream.cli.commands import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import Cell, Output, OutputFormat, print_note
from icestream.cli.progress_bar import progress_bar
from icestream.model.shard import DeclaredGap, TopicIdentity
from icestream.observability.words import counted, size_text
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import LocalDirectory, open_directory
from icestream.runtime.randomness import SystemRandomness
from icestream.wal import inspect as wal_inspect
from icestream.wal.admission import Quota, quota_of
from icestream.wal.damage import RepairPlan, plan_repair
from icestream.wal.log_file import LOCK_NAME, is_of_a_log, log_name
from icestream.wal.log_repair import apply_repair
from icestream.wal.losses import Loss
from icestream.wal.lost_log import plan_lost_log

app = Commands("Inspect and repair the write-ahead log.")

LogPath = Annotated[
    Path | None, typer.Argument(metavar="[DIRECTORY]", help="Directory of the log; default: that of the settings.")
]


@contextmanager
def _log_directory(path: Path, *, read_only: bool) -> Iterator[LocalDirectory]:
    """Opens the directory of the log. Raises InvalidInput if it contains no log, ConfigurationError if unreadable."""
    directory = open_directory(path, read_only=read_only) if path.is_dir() else None
    if directory is None or not any(map(is_of_a_log, directory.names())):
        below = path / "wal"
        hint = f"did you mean {below}?" if below.is_dir() else "start `icestream serve` once, or name a directory"
        raise errors.InvalidInput(f"no log in {path}", hint=hint)
    try:
        yield directory
    except PermissionError as error:
        raise errors.ConfigurationError(
            f"cannot read {error.filename}: {error.strerror}", hint="use the account that runs the broker"
        ) from error
    finally:
        directory.close()


@app.command()
def inspect(
    path: LogPath = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
    records: Annotated[
        int | None, typer.Option("--records", metavar="NUMBER", help="List the records of one log file instead.")
    ] = None,
) -> None:
    """Show files, shards and state of the log; changes nothing and can be used while a broker is running.

    Example: icestream wal inspect --output json
    """
    answer = Output(output)
    wal_settings = load_settings(config, sets).settings.wal
    with _log_directory(path or Path(wal_settings.base_path), read_only=True) as directory:
        if records is not None:
            _show_records(directory, records, answer)
            return
        view = wal_inspect.view_log(directory)
        quota = quota_of(wal_settings.quota, wal_settings.topic_quota, directory.free_bytes(), view.used_bytes)
    if answer.is_text:
        _show_view(view, quota, answer)
    else:
        answer.record(_as_document(view, quota))
    if view.damage:
        raise view.damage


def _show_view(view: wal_inspect.LogView, quota: Quota, answer: Output) -> None:
    answer.table(
        ("file", "state", "first record", "last record", "size", "used", "shards"),
        [
            (
                file.name,
                file.state,
                file.first_lsn,
                file.last_lsn,
                size_text(file.size),
                size_text(file.used_bytes),
                file.shards or "",
            )
            for file in view.files
        ],
    )
    answer.print_line("")
    answer.table(
        ("topic", "shard", "floor", "end", "reserved", "epoch", "declared gaps"),
        [
            (
                shard.topic,
                shard.key.shard,
                shard.floor,
                shard.end,
                shard.reserved,
                shard.epoch,
                ", ".join(f"{gap.start}..{gap.end - 1} {gap.reason} ({gap.state.name.lower()})" for gap in shard.gaps),
            )
            for shard in view.shards
        ],
    )
    answer.print_line("")
    windows, spares = counted(view.producers, "producer window"), counted(view.spares, "spare file")
    answer.print_line(f"checkpoint {view.checkpoint_lsn}, last record {view.last_lsn}, {windows}")
    answer.print_line(f"{spares}; {'closed cleanly' if view.clean else 'open, or not closed cleanly'}")
    node, topic = size_text(quota.node_bytes), size_text(quota.topic_bytes)
    answer.print_line(f"{size_text(view.used_bytes)} used of a quota of {node}; a topic may use {topic}")
    if view.sync_failed:
        answer.print_line("a sync failed during the last run: check the disk; the next start rewrites unsealed records")


def _as_document(view: wal_inspect.LogView, quota: Quota) -> dict[str, object]:
    return {
        "files": [
            {
                "name": file.name,
                "state": file.state,
                "first_lsn": file.first_lsn,
                "last_lsn": file.last_lsn,
                "size_bytes": file.size,
                "used_bytes": file.used_bytes,
                "shards": file.shards,
            }
            for file in view.files
        ],
        "shards": [
            {
                "topic_id": shard.key.topic_id,
                "topic": shard.topic,
                "shard": shard.key.shard,
                "floor": shard.floor,
                "end": shard.end,
                "reserved": shard.reserved,
                "epoch": shard.epoch,
                "gaps": [
                    {"start": gap.start, "end": gap.end, "reason": gap.reason, "state": gap.state.name.lower()}
                    for gap in shard.gaps
                ],
            }
            for shard in view.shards
        ],
        "spare_files": view.spares,
        "checkpoint_lsn": view.checkpoint_lsn,
        "last_lsn": view.last_lsn,
        "producer_windows": view.producers,
        "clean": view.clean,
        "sync_failed": view.sync_failed,
        "used_bytes": view.used_bytes,
        "quota_bytes": quota.node_bytes,
        "topic_quota_bytes": quota.topic_bytes,
        "damage": str(view.damage) if view.damage else None,
    }


def _show_records(directory: LocalDirectory, number: int, answer: Output) -> None:
    name = log_name(number)
    if name not in directory.names():
        raise errors.InvalidInput(f"no log file {name}", hint="`icestream wal inspect` lists the files")
    answer.table(
        ("lsn", "kind", "position", "bytes", "sections", "state", "synced through", "append time us"),
        list(wal_inspect.records_of(directory, name, number)),
    )


@app.command()
def repair(
    path: LogPath = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Repair the log; the listed messages are lost permanently.")
    ] = False,
) -> None:
    """Report damage and the messages lost by it; with --accept-loss, repair the log.

    Reads every record. The damaged files are kept next to the log as damaged-…; the broker must be stopped.
    Example: icestream wal repair --accept-loss --output json
    """
    log_path = path or Path(load_settings(config, sets).settings.wal.base_path)
    with _log_directory(log_path, read_only=False) as directory, closing(directory.lock(LOCK_NAME)):
        plan = plan_lost_log(directory, SystemRandomness().token(16)) or _plan(directory)
        if plan.refusal:
            raise plan.refusal
        originals = apply_repair(directory, SystemClock(), plan) if accept_loss else []
    _report(plan, originals, Output(output), is_accepted=accept_loss)


def _plan(directory: LocalDirectory) -> RepairPlan:
    files = len([name for name in directory.names() if name.startswith("log-")])
    with progress_bar("reading the log", files) as advance:
        return plan_repair(directory, lambda: advance(1))


def _report(plan: RepairPlan, originals: list[str], answer: Output, *, is_accepted: bool) -> None:
    """Prints the losses, and what was or has to be done. `originals`: names of the damaged files that were kept."""
    rows = [
        (
            loss.file,
            loss.position,
            loss.size,
            _records_cell(loss),
            _gaps_cell(plan, loss.gaps, "none", _gap_text),
            _gaps_cell(plan, loss.unknown, "no", _unknown_text),
        )
        for loss in plan.losses
    ]
    answer.table(("file", "position", "bytes", "records", "messages lost", "perhaps more"), rows)
    for topic in plan.nameless:
        print_note(f"The name of topic {topic.id} is lost; the log uses {topic.name} instead.")
    if plan.is_lost_whole:
        print_note(
            "The directory has no log file. If this node had a log, all uncommitted messages are lost, and the next "
            "start declares a gap for each shard in the metadata store. Otherwise there is nothing to do."
        )
    elif plan.has_lost_end:
        print_note(
            "The end of the log is lost. Topics created in it are not listed and may have lost messages as well; the "
            "next start declares a gap for each of their shards in the metadata store."
        )
    if not plan.is_needed:
        print_note(f"{counted(plan.files, 'file')} read, no damage found.")
    elif plan.is_decided:
        print_note(
            "An interrupted repair was completed; run `icestream wal repair` again to check for further damage."
            if is_accepted
            else "A repair was interrupted; `icestream wal repair --accept-loss` completes it."
        )
    elif is_accepted:
        details = f"originals kept as {', '.join(originals)}" if originals else "no file had to be rewritten"
        print_note(f"Repaired; {details}.")
    else:
        print_note(
            "Nothing was changed. `icestream wal repair --accept-loss` discards the listed messages and repairs "
            "the log."
        )


def _records_cell(loss: Loss) -> Cell:
    if not loss.lsn_first:
        return Cell(None, "none")
    return Cell([loss.lsn_first, loss.lsn_last], f"{loss.lsn_first}..{loss.lsn_last}")


def _gaps_cell(
    plan: RepairPlan, gaps: list[DeclaredGap], nothing: str, text: Callable[[str, DeclaredGap], str]
) -> Cell:
    """The gaps with the names of their topics, as far as the log still has the names."""
    names = [plan.topics.get(gap.key.topic_id, TopicIdentity.nameless(gap.key.topic_id)).name for gap in gaps]
    texts = ", ".join(text(f"{name} shard {gap.key.shard}", gap) for name, gap in zip(names, gaps, strict=True))
    return Cell([_gap_document(name, gap) for name, gap in zip(names, gaps, strict=True)], texts or nothing)


def _gap_document(topic: str, gap: DeclaredGap) -> dict[str, int | str]:
    return {
        "topic": topic, "topic_id": gap.key.topic_id, "shard": gap.key.shard, "start": gap.start, "end": gap.end,
    }  # fmt: skip


def _gap_text(shard: str, gap: DeclaredGap) -> str:
    return f"{shard} {gap.start}..{gap.end - 1}"


def _unknown_text(shard: str, gap: DeclaredGap) -> str:
    return f"{shard} from {gap.start} (resumes at {gap.end})"
