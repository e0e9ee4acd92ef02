"""`icestream wal`: look into the log, and repair it with an explicit account of what is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from icestream import errors
from icestream.cli.command import Commands
from icestream.cli.options import ConfigFile, OutputChoice, Sets, load_settings
from icestream.cli.output import Cell, Output, OutputFormat, say_aside
from icestream.cli.progress import progress
from icestream.model.shard import Gap, Topic
from icestream.observability.words import counted, size_text
from icestream.runtime.clock import SystemClock
from icestream.runtime.files import LocalDirectory, open_directory
from icestream.runtime.randomness import SystemRandomness
from icestream.wal import inspect as wal_inspect
from icestream.wal.admission import Quota, quota_of
from icestream.wal.damage import RepairPlan, plan_repair
from icestream.wal.log_file import LOCK_NAME, is_of_a_log, log_name
from icestream.wal.losses import Loss
from icestream.wal.lost_log import plan_lost_log
from icestream.wal.repair import apply_repair

app = Commands("Look into the write-ahead log, and repair it.")

LogPath = Annotated[
    Path | None, typer.Argument(metavar="[DIRECTORY]", help="The log's directory; without it, the configured one.")
]


@contextmanager
def _directory(where: Path, *, read_only: bool) -> Iterator[LocalDirectory]:
    directory = open_directory(where, read_only=read_only) if where.is_dir() else None
    if directory is None or not any(map(is_of_a_log, directory.names())):
        below = where / "wal"
        hint = f"do you mean {below}?" if below.is_dir() else "start `icestream serve` once, or name a directory"
        raise errors.InvalidInput(f"there is no log in {where}", hint=hint)
    try:
        yield directory
    except PermissionError as error:
        raise errors.ConfigurationError(
            f"{error.filename} cannot be read: {error.strerror}", hint="use the account that runs the broker"
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
    """Show files, shards and health of the log; changes nothing and works beside a running broker.

    Example: icestream wal inspect --output json
    """
    answer = Output(output)
    wanted = load_settings(config, sets).settings.wal
    with _directory(path or Path(wanted.base_path), read_only=True) as directory:
        if records is not None:
            _show_records(directory, records, answer)
            return
        view = wal_inspect.view_log(directory)
        quota = quota_of(wanted.quota, wanted.topic_quota, directory.free_bytes(), view.used_bytes)
    if answer.for_people:
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
    answer.say("")
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
    answer.say("")
    windows, spares = counted(view.producers, "producer window"), counted(view.spares, "spare file")
    answer.say(f"checkpoint {view.checkpoint_lsn}, last record {view.last_lsn}, {windows}")
    answer.say(f"{spares}; {'closed in order' if view.clean else 'open, or ended without a clean stop'}")
    node, topic = size_text(quota.node_bytes), size_text(quota.topic_bytes)
    answer.say(f"{size_text(view.used_bytes)} used of a quota of {node}; a topic may use {topic}")
    if view.sync_failed:
        answer.say("a sync failed in the last run: check the disk; the next start writes what is not sealed anew")


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
        raise errors.InvalidInput(f"there is no file {name}", hint="icestream wal inspect lists the files")
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
        bool, typer.Option("--accept-loss", help="Really do it: the listed messages are given up, for good.")
    ] = False,
) -> None:
    """Say what is damaged and which messages that costs; with --accept-loss, make the log start again.

    Reads every record. The damaged files are kept beside the log as damaged-…; the broker must be stopped.
    Example: icestream wal repair --accept-loss --output json
    """
    where = path or Path(load_settings(config, sets).settings.wal.base_path)
    with _directory(where, read_only=False) as directory, closing(directory.lock(LOCK_NAME)):
        plan = plan_lost_log(directory, SystemRandomness().token(16)) or _plan(directory)
        if plan.refusal:
            raise plan.refusal
        kept = apply_repair(directory, SystemClock(), plan) if accept_loss else []
    _report(plan, kept, Output(output), accepted=accept_loss)


def _plan(directory: LocalDirectory) -> RepairPlan:
    files = len([name for name in directory.names() if name.startswith("log-")])
    with progress("reading the log", files) as advance:
        return plan_repair(directory, lambda: advance(1))


def _report(plan: RepairPlan, kept: list[str], answer: Output, *, accepted: bool) -> None:
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
        say_aside(f"the name of topic {topic.id} is lost with it: the log calls it {topic.name}")
    if plan.is_lost_whole:
        say_aside(
            "the directory has no log file. If this node has had a log, every message that is in no table is lost, and "
            "the next start declares a gap for each shard that the metadata store knows; if not, there is nothing to do"
        )
    elif plan.has_lost_end:
        say_aside(
            "the end of the log is lost: topics that were new in it are not listed, and may have lost messages, too. "
            "A start that knows them by the metadata store declares a gap for each of their shards"
        )
    if not plan.is_needed:
        say_aside(f"{counted(plan.files, 'file')} read, nothing is damaged")
    elif plan.is_decided:
        say_aside(
            "a repair was interrupted and is finished now; `icestream wal repair` says whether anything is left"
            if accepted
            else "a repair was interrupted: `icestream wal repair --accept-loss` finishes it"
        )
    elif accepted:
        originals = f"originals kept as {', '.join(kept)}" if kept else "no file had to be written anew"
        say_aside(f"repaired; {originals}")
    else:
        say_aside("nothing was changed; `icestream wal repair --accept-loss` gives up what is listed and mends the log")


def _records_cell(loss: Loss) -> Cell:
    if not loss.lsn_first:
        return Cell(None, "none")
    return Cell([loss.lsn_first, loss.lsn_last], f"{loss.lsn_first}..{loss.lsn_last}")


def _gaps_cell(plan: RepairPlan, gaps: list[Gap], nothing: str, text: Callable[[str, Gap], str]) -> Cell:
    """The gaps with the names of their topics, as far as the log still knows them."""
    names = [plan.topics.get(gap.key.topic_id, Topic.nameless(gap.key.topic_id)).name for gap in gaps]
    shown = ", ".join(text(f"{name} shard {gap.key.shard}", gap) for name, gap in zip(names, gaps, strict=True))
    return Cell([_gap_document(name, gap) for name, gap in zip(names, gaps, strict=True)], shown or nothing)


def _gap_document(topic: str, gap: Gap) -> dict[str, int | str]:
    return {
        "topic": topic, "topic_id": gap.key.topic_id, "shard": gap.key.shard, "start": gap.start, "end": gap.end,
    }  # fmt: skip


def _gap_text(where: str, gap: Gap) -> str:
    return f"{where} {gap.start}..{gap.end - 1}"


def _unknown_text(where: str, gap: Gap) -> str:
    return f"{where} from {gap.start} on (goes on at {gap.end})"
