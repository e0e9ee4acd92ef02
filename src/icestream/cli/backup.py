"""`icestream backup`: makes, lists, shows, verifies and deletes backups.

`create` runs in this process, beside a broker of this machine: it asks the broker for its log and its metadata store
over the local socket, and reads the files of tables itself. The other commands need the backup target alone, so they
work when nothing else is left.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icestream import errors, limits
from icestream.cli.backup_archive import app as archive
from icestream.cli.backup_archive import parse_cut, past_backup
from icestream.cli.backup_stores import (
    BackupId,
    KeyOption,
    TargetOption,
    key_source_of,
    location_of,
    rate_of,
    resolve_backup,
    warehouse_files,
    warehouse_source,
    with_target,
)
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.commands import Commands
from icestream.cli.confirmation import Yes, confirm
from icestream.cli.drill_commands import drill, drills
from icestream.cli.options import ConfigFile, OutputChoice, Sets, Watch, load_settings
from icestream.cli.output import Output, OutputFormat, print_note
from icestream.cli.positions import time_text
from icestream.cli.progress_bar import progress_bar, share_bar
from icestream.observability.words import counted, size_text

if TYPE_CHECKING:
    from icestream.backup.backup_lock import LockOptions
    from icestream.backup.backup_root import BackupRoot
    from icestream.backup.backup_run import BackupPlan, Progress
    from icestream.backup.stored_backups import StoredBackup, StoredBackups
    from icestream.processes.replaced_topic import ReplacedTopic
    from icestream.processes.restore_run import RestoredTopic, RestorePlan
    from icestream.processes.state_restore import RestoredPart
    from icestream.settings import Settings

app = Commands("Make, list, show, verify, restore, try and delete backups.")
app.command()(drill)
app.command()(drills)
app.add_typer(archive, name="archive")
EXIT_INCOMPLETE: Final = 14
_COLUMNS: Final = ("id", "state", "kind", "cut", "topics", "files", "bytes", "parent", "locked_until")
_FINDING_COLUMNS: Final = ("object", "severity", "text")
_RESTORED_COLUMNS: Final = ("topic", "id", "table", "messages", "files", "subscriptions", "problem")
_PROGRESS_SECONDS: Final = 0.2


@app.command()
def create(
    to: TargetOption = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="PATTERN", help="Names of topics, such as /shop/*; repeatable. Default: all."),
    ] = None,
    incremental_from: Annotated[
        str | None,
        typer.Option("--incremental-from", metavar="ID", help="Reuse the files of this backup; `latest`."),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option("--reference", help="Pin the files of tables instead of copying them: survives no loss of them."),
    ] = False,
    resume: Annotated[str | None, typer.Option("--resume", metavar="ID", help="Continue a run that ended.")] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="SIZE", help="Bytes per second, such as 50MiB; default: no limit.")
    ] = None,
    key: KeyOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Back up topics, subscriptions, schemas, sessions and accounts of a running broker, at one consistent moment.

    Exit code 14: the backup is there, and lacks what its `incomplete` names.

    Example: icestream backup create --to /backup
    Example: icestream backup create --to s3://backups/prod --incremental-from latest
    """
    from icestream.backup.backup_lock import lock_options
    from icestream.cli.catalog_access import catalog_settings

    target = Target(broker, config, sets)
    settings = catalog_settings(target, needs_node=True)
    own = load_settings(config, sets).settings
    location, key_source = location_of(to, own), key or key_source_of(own)
    lock = lock_options(own.backup.object_lock.mode, own.backup.object_lock.days)

    async def run(stored: StoredBackups) -> BackupRoot:
        return await _create(
            target, settings, stored, topics or [], incremental_from, resume, rate_of(rate, own), lock,
            is_reference=reference,
        )  # fmt: skip

    root = with_target(settings, location, key_source, run)
    _show_root(root, Output(output))
    if root.state != "complete":
        raise typer.Exit(EXIT_INCOMPLETE)


@app.command("list")
def list_backups(
    to: TargetOption = None,
    _watch: Watch = False,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the backups of a target, the oldest first.

    Example: icestream backup list --to /backup
    """
    settings = load_settings(config, sets).settings
    backups = with_target(settings, location_of(to, settings), None, lambda stored: stored.backups())
    answer = Output(output)
    answer.table(_COLUMNS, [_row(backup, is_text=answer.is_text) for backup in backups])
    if not backups and answer.is_text:
        print_note("No backups. `icestream backup create` makes one.")


@app.command()
def show(
    backup_id: BackupId,
    to: TargetOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a backup: its cut, its topics, what it lacks.

    Example: icestream backup show latest --to /backup
    """
    settings = load_settings(config, sets).settings

    async def read(stored: StoredBackups) -> BackupRoot:
        return await stored.root(await resolve_backup(stored, backup_id))

    _show_root(with_target(settings, location_of(to, settings), None, read), Output(output), is_detailed=True)


@app.command()
def verify(
    backup_id: BackupId,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of every object.")] = False,
    to: TargetOption = None,
    key: KeyOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check that everything a backup names is there; with --deep that every byte of it is what was written.

    Exit code 1: an error was found. 14: no error, but the backup is incomplete or was not checked entirely.

    Example: icestream backup verify latest --to /backup
    Example: icestream backup verify latest --to /backup --deep
    """
    from icestream.backup.backup_verify import BackupVerification
    from icestream.runtime.tasks import ThreadOffload

    settings = load_settings(config, sets).settings
    offload = ThreadOffload("backup", limits.BACKUP_UPLOADS_AT_ONCE)

    async def check(stored: StoredBackups) -> list[Any]:
        resolved = await resolve_backup(stored, backup_id)
        root = await stored.root(resolved)
        with progress_bar(resolved, root.files) as advance:
            verification = BackupVerification(stored, offload, warehouse_source(settings), advance)
            return await verification.verify(resolved, is_deep=deep)

    try:
        findings = with_target(settings, location_of(to, settings), key or key_source_of(settings), check)
    finally:
        offload.close()
    answer = Output(output)
    if findings or not answer.is_text:
        answer.table(_FINDING_COLUMNS, [list(finding) for finding in findings], keep=("text",))
    error_count = sum(finding.severity == "error" for finding in findings)
    if answer.is_text:
        print_note(f"{counted(error_count, 'error')}, {counted(len(findings) - error_count, 'warning')}")
    if findings:
        raise typer.Exit(1 if error_count else EXIT_INCOMPLETE)


@app.command()
def delete(
    backup_id: BackupId,
    to: TargetOption = None,
    yes: Yes = False,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete a backup, and the objects that no other backup needs. Its pins are removed if the broker runs.

    A backup that is locked (`backup.object_lock`) is refused until its date.

    Example: icestream backup delete 20261118T201500Z-3fa9c1d2 --to /backup
    """
    settings = load_settings(config, sets).settings
    location = location_of(to, settings)
    resolved = with_target(
        settings, location, None, lambda stored: resolve_backup(stored, backup_id, is_complete=False)
    )
    confirm(f"Delete backup {resolved} of {location}?", is_confirmed=yes)

    async def remove(stored: StoredBackups) -> dict[str, Any]:
        from icestream.backup.inventory_table import update_inventory
        from icestream.runtime.clock import SystemClock

        now_ms = SystemClock().wall_us() // 1_000
        await stored.check_deletable(resolved, now_ms)  # before its pins are gone
        try:
            kind = (await stored.begin(resolved)).kind
        except errors.BackupDamaged:
            kind = "reference"  # perhaps
        is_released = await _release_pins(Target(broker, config, sets), resolved)
        if not is_released and kind == "reference":
            raise errors.ConnectionLost(
                f"the pins of reference backup {resolved} cannot be removed without its broker",
                hint="start the broker, and delete the backup then",
            )
        with share_bar(resolved) as show:
            deleted = await stored.delete(resolved, now_ms=now_ms, on_progress=show)
        await update_inventory(stored.target, stored, now_ms)
        return deleted._asdict() | {"pins_removed": is_released}

    Output(output).record(with_target(settings, location, None, remove))


@app.command()
def restore(
    backup_id: BackupId,
    to: TargetOption = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", metavar="PATTERN", help="Names of topics, such as /shop/*; repeatable. Default: all."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAMESPACE", help="All topics of a namespace, such as /shop.")
    ] = None,
    new_name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="New name: of the one topic of --topics, or of --namespace."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--everything", help="Restore all of the backup; an error if the broker is not empty."),
    ] = False,
    accounts: Annotated[
        bool,
        typer.Option("--accounts", help="Restore accounts, roles and grants too; every token and login stays ended."),
    ] = False,
    no_subscriptions: Annotated[
        bool, typer.Option("--no-subscriptions", help="Restore the messages alone, without subscriptions and cursors.")
    ] = False,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="As it was then, by the archive: RFC 3339, epoch ms, `end`."),
    ] = None,
    to_offset: Annotated[
        str | None,
        typer.Option("--to-offset", metavar="SHARD:OFFSET", help="What came before this message, by the archive."),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Replace live topics that --topics names; shows what is lost, and asks."),
    ] = False,
    bring_back_erased: Annotated[
        bool,
        typer.Option("--bring-back-erased", help="Restore messages that were erased after the backup, too."),
    ] = False,
    yes: Yes = False,
    key: KeyOption = None,
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Restore topics into a running broker, with their offsets, subscriptions and cursors; repeat it to continue.

    An empty broker gets all of the backup: every schema, MQTT sessions and retained messages too. Topics and tables
    that exist are not changed: `--as` restores beside a live topic, or with --namespace all topics of a namespace
    beside the live ones. Accounts are restored with --accounts alone.

    With --in-place a live topic is replaced when all files are there, in one step. What it has and the backup has not
    is shown first. The former topic can come back within its grace: delete the restored one, then `topic undelete`.

    Messages that were erased after the backup stay erased, as far as the target or the broker knows of it; the output
    counts them.

    With --to-time or --to-offset the archive is replayed behind the backup; `latest` is the newest backup before it.

    Exit code 14: something was left out, because its name is taken or its messages are incomplete in the backup.

    Example: icestream backup restore latest --to /backup
    Example: icestream backup restore latest --to /backup --topics /shop/orders --as /shop/orders_restored
    Example: icestream backup restore latest --to /backup --namespace /shop --as /shop_restored
    Example: icestream backup restore latest --to /backup --topics /shop/orders --in-place --yes
    Example: icestream backup restore latest --to /backup --to-time 2026-11-19T10:30:00Z
    """
    from icestream.cli.catalog_access import catalog_settings
    from icestream.processes.restore_choice import RestoreChoice, restore_plan

    choice = RestoreChoice(
        topics or [], namespace, new_name, everything, accounts, not no_subscriptions, in_place, bring_back_erased
    )  # fmt: skip
    choice.check()
    cut = parse_cut(to_time, to_offset, choice.topics)
    target = Target(broker, config, sets)
    settings = catalog_settings(target, needs_node=True)
    own = load_settings(config, sets).settings
    location, key_source = location_of(to, own), key or key_source_of(own)

    async def run(stored: StoredBackups) -> tuple[list[RestoredTopic], list[RestoredPart]]:
        if cut is None:
            root = await stored.root(await resolve_backup(stored, backup_id))
        else:
            archive = own.backup.archive.target or location
            stored, root = await past_backup(settings, stored, archive, backup_id, cut, Path(spool))
        plan = await restore_plan(stored, root, choice)
        for shard in root.incomplete:
            print_note(f"shard {shard.shard} of {shard.topic} is incomplete in the backup: {shard.reason}")
        return await _restore(target, settings, stored, root, plan, is_confirmed=yes)

    # Beside the data of the broker, where there is room; a broker that is named with --broker may have them elsewhere.
    spool_folder = own.data_dir if cut and own.data_dir.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="icestream-archive-", dir=spool_folder) as spool:
        restored, parts = with_target(settings, location, key_source, run)
    answer = Output(output)
    if answer.is_text:
        answer.table(_RESTORED_COLUMNS, [[getattr(topic, name) for name in _RESTORED_COLUMNS] for topic in restored])
        for topic in restored:
            if topic.erased:
                print_note(f"{topic.topic}: {counted(topic.erased, 'message')} of the backup stay erased")
        for part in parts:
            print_note(f"{part.part}: {part.restored}" + "".join(f"\n  left out: {text}" for text in part.left_out))
    else:
        answer.record({"topics": [topic._asdict() for topic in restored], "parts": [part._asdict() for part in parts]})
    if any(topic.problem for topic in restored) or any(part.left_out for part in parts):
        raise typer.Exit(EXIT_INCOMPLETE)


async def _restore(
    target: Target,
    settings: Settings,
    stored: StoredBackups,
    root: BackupRoot,
    plan: RestorePlan,
    *,
    is_confirmed: bool = False,
) -> tuple[list[RestoredTopic], list[RestoredPart]]:
    """Runs a restore against the broker, with a progress bar. A restore in place is confirmed first."""
    from icestream.admin_api.topic_api import LIST_DELETED_TOPICS
    from icestream.cli.broker_connection import broker_calls
    from icestream.cli.lake_http import LakeApi
    from icestream.iceberg.identifier import Identifier
    from icestream.model.topic_name import TopicName
    from icestream.processes.configured_catalog import open_catalog
    from icestream.processes.restore_run import RestoreRun
    from icestream.processes.restored_tables import RestoredTables
    from icestream.runtime.clock import SystemClock
    from icestream.runtime.tasks import ThreadOffload

    api = await asyncio.to_thread(LakeApi, settings, "`icestream backup restore`", needs_embedded=False)

    def bind(topic: str, table: Identifier, metadata_file: str) -> None:
        if api.get("topics", topic=topic)["table"] is None:
            fields = {"namespace": [*table.namespace], "table": table.name, "topic": topic}
            # The gap is what the restore declares behind the last message.
            api.post("adopt", **fields, metadata_file=metadata_file, accept=["accept-gap"])

    async def adopt(topic: TopicName, table: Identifier, metadata_file: str) -> None:
        for _ in range(limits.RESTORE_ADOPTION_ATTEMPTS):
            try:
                return await asyncio.to_thread(bind, str(topic), table, metadata_file)
            except errors.AlreadyExists:
                if not plan.is_in_place:
                    raise
            # The lake process drops the table of the topic that was replaced.
            await asyncio.sleep(limits.RESTORE_ADOPTION_SECONDS)
        raise errors.NotReady(
            f"topic {topic} was replaced, but its former table {table} is still there", hint="repeat the command"
        )

    offload = ThreadOffload("restore", limits.RESTORE_FILES_AT_ONCE)
    foreign = None if settings.catalog_embedded else open_catalog(settings)
    tables = RestoredTables(settings, foreign=foreign)
    total = sum(cut.table.bytes for cut, _ in plan.topics if cut.table is not None)
    try:
        async with broker_calls(target.location) as broker:

            def new_run(on_bytes: Callable[[int], None]) -> RestoreRun:
                return RestoreRun(
                    broker.call, adopt, stored, warehouse_source(settings), tables, SystemClock(), offload, plan,
                    on_bytes,
                )  # fmt: skip

            replaced: list[ReplacedTopic] = []
            if plan.is_in_place:
                replaced = await new_run(lambda _: None).replaced(root)
                _confirm_replacement(replaced, is_confirmed=is_confirmed)
            with progress_bar(root.id, max(total, 1)) as advance:
                run = new_run(advance)
                restored = await run.run(root)
            if replaced:
                try:
                    deleted = (await broker.call(LIST_DELETED_TOPICS))["topics"]
                except errors.PermissionDenied:  # the list is of the whole cluster, a restore asks for less
                    deleted = None
                for line in undelete_lines(replaced, restored, deleted, is_foreign=foreign is not None):
                    print_note(line)
            return restored, run.parts
    finally:
        if foreign is not None:
            await foreign.close()
        offload.close()


def _confirm_replacement(topics: list[ReplacedTopic], *, is_confirmed: bool) -> None:
    """Shows what a restore in place takes away, and asks."""
    for topic in topics:
        for line in topic.lines():
            print_note(line)
    if topics:
        names = ", ".join(topic.topic for topic in topics)
        confirm(f"Replace {names}?", is_confirmed=is_confirmed, unchanged="nothing was replaced")


def undelete_lines(
    replaced: list[ReplacedTopic],
    restored: list[RestoredTopic],
    deleted: list[dict[str, Any]] | None,
    *,
    is_foreign: bool = False,
) -> list[str]:
    """How the former topics come back, of those that can. `deleted`: the topics that can come back, if they may be
    listed. `is_foreign`: their tables are in another catalog, which gives no name back by itself."""
    replaced_names = {topic.topic: topic for topic in restored if not topic.problem}

    def delete(topic: str) -> str:
        if not is_foreign:
            return f"`icestream topic delete {topic} --table drop`"
        table = replaced_names[topic].table
        return (
            f"`icestream topic delete {topic} --table keep`; in the catalog drop {table}, and rename "
            f"{table}__replaced_{replaced_names[topic].id} to it"
        )

    until = None if deleted is None else {topic["id"]: time_text(topic["until_ms"] * 1_000) for topic in deleted}
    return [
        f"The former {topic.topic} (id {topic.id}) can come back "
        f"{'within `broker.undelete_grace_ms`' if until is None else f'until {until[topic.id]}'}: "
        f"{delete(topic.topic)}, then "
        f"`icestream topic undelete {topic.topic} --id {topic.id}`"
        for topic in replaced
        if topic.topic in replaced_names and (until is None or topic.id in until)
    ]


# --- the run ----------------------------------------------------------------------------------------------------------


async def _create(
    target: Target,
    settings: Settings,
    stored: StoredBackups,
    topics: list[str],
    parent: str | None,
    resume: str | None,
    bytes_per_second: float,
    lock: LockOptions | None,
    *,
    is_reference: bool,
) -> BackupRoot:
    """Runs a backup against the broker, with a progress bar."""
    from icestream.backup.backup_layout import check_backup_id, new_backup_id
    from icestream.backup.backup_run import BackupPlan, BackupRun, Progress
    from icestream.backup.node_client import NodeClient
    from icestream.backup.object_upload import ObjectUpload, WriteRate
    from icestream.backup.seed_manifest import SeedOptions
    from icestream.cli.broker_connection import broker_calls
    from icestream.cli.broker_settings import broker_instance
    from icestream.processes.configured_catalog import open_catalog
    from icestream.processes.copy_tasks import command_tasks
    from icestream.runtime.clock import SystemClock
    from icestream.runtime.randomness import SystemRandomness
    from icestream.runtime.tasks import ThreadOffload

    clock, randomness = SystemClock(), SystemRandomness()
    if parent is not None:
        parent = await resolve_backup(stored, parent)
    instance = await asyncio.to_thread(broker_instance, settings) if settings.catalog_embedded else ""
    plan = BackupPlan(
        check_backup_id(resume) if resume else new_backup_id(clock.wall_us() // 1_000, randomness.token(4)),
        "reference" if is_reference else "copy", topics, parent, instance, _version(), lock,
    )  # fmt: skip
    offload, progress = ThreadOffload("backup", limits.BACKUP_UPLOADS_AT_ONCE), Progress()
    catalog = open_catalog(settings, clock, randomness, instance=lambda: instance)
    try:
        async with broker_calls(target.location) as broker:
            node = NodeClient(broker.call, plan.id)
            seed = SeedOptions(**await node.options())
            upload = ObjectUpload(stored.target, offload, clock, randomness, stored.key, WriteRate(bytes_per_second))
            if resume is None:
                print_note(f"backup {plan.id}")
            with command_tasks(settings) as tasks:
                bulk = tasks.bulk_copy(settings, stored.target.location("").rstrip("/"), upload, bytes_per_second)
                run = BackupRun(
                    node, catalog, warehouse_files(settings), upload, clock, plan, seed, progress, bulk=bulk,
                    is_foreign=not settings.catalog_embedded,
                )  # fmt: skip
                async with _shown(progress, plan):
                    return await (run.resume() if resume else run.run())
    finally:
        await catalog.close()
        offload.close()


@asynccontextmanager
async def _shown(progress: Progress, plan: BackupPlan) -> AsyncIterator[None]:
    """Shows the progress of a run at a terminal."""

    async def follow() -> None:
        reported = 0
        with progress_bar(plan.id, 1_000) as advance:
            while True:
                done = 1_000 * progress.bytes // max(progress.bytes_total, 1)
                advance(done - reported)
                reported = done
                await asyncio.sleep(_PROGRESS_SECONDS)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _release_pins(target: Target, backup_id: str) -> bool:
    """Removes the holds and tags of a backup; False if the broker cannot be reached."""
    from icestream.backup.backup_run import release_pins
    from icestream.backup.node_client import NodeClient
    from icestream.cli.broker_connection import broker_calls
    from icestream.cli.broker_settings import broker_instance
    from icestream.cli.catalog_access import catalog_settings
    from icestream.processes.configured_catalog import open_catalog

    try:
        settings = await asyncio.to_thread(lambda: catalog_settings(target, needs_node=True))
        instance = await asyncio.to_thread(broker_instance, settings) if settings.catalog_embedded else ""
        catalog = open_catalog(settings, instance=lambda: instance)
        try:
            async with broker_calls(target.location) as broker:
                node = NodeClient(broker.call, backup_id)
                await release_pins(node, catalog, backup_id)
                await node.end()  # of a run that was killed: it holds the log, and counts as running, for two minutes
        finally:
            await catalog.close()
    except (errors.ConnectionLost, errors.StorageUnavailable):
        return False
    return True


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("icestream")
    except PackageNotFoundError:
        return ""


# --- output -----------------------------------------------------------------------------------------------------------


def _row(backup: StoredBackup, *, is_text: bool) -> list[object]:
    root = backup.root
    if root is None:
        return [backup.id, "unfinished", None, None, None, None, None, None, None]
    size: object = size_text(root.bytes) if is_text else root.bytes
    cut: object = time_text(root.cut_ms * 1_000) if is_text else root.cut_ms
    until_ms = root.lock.until_ms if root.lock is not None else None
    locked: object = time_text(until_ms * 1_000) if is_text and until_ms is not None else until_ms
    return [backup.id, root.state, root.kind, cut, len(root.topics), root.files, size, root.parent, locked]


def _show_root(root: BackupRoot, answer: Output, *, is_detailed: bool = False) -> None:
    """Prints a root: entirely as JSON, else a summary, with a line for each topic if `is_detailed`."""
    import msgspec

    if not answer.is_text:
        answer.document(msgspec.to_builtins(root))
        return
    answer.record(
        {
            "id": root.id,
            "state": root.state,
            "kind": root.kind,
            "parent": root.parent,
            "revision": root.revision,
            "topics": len(root.topics),
            "files": root.files,
            "size": size_text(root.bytes),
            "seconds": (root.ended_ms - root.begun_ms) / 1_000,
            "incomplete": len(root.incomplete),
            "left out": len(root.left_out),
            "locked until": time_text(root.lock.until_ms * 1_000) if root.lock is not None else None,
            "lock": root.lock.mode if root.lock is not None else None,
            "encrypted with": root.encryption.key_id if root.encryption is not None else None,
        }
    )
    if is_detailed:
        rows = [
            [topic.name, shard.shard, shard.committed, shard.end, len(shard.tails), shard.node]
            for topic in root.topics
            for shard in topic.shards
        ]
        answer.table(["topic", "shard", "in table below", "end", "tails", "node"], rows)
    for entry in root.incomplete:
        print_note(f"incomplete: {entry.topic}, shard {entry.shard}: {entry.reason}")
