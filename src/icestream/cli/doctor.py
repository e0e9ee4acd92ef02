"""`icestream doctor`: is this machine fit for a broker, and is the one on it well? It changes nothing.

One line per check; what can be judged from values is judged in findings.py, and network_check.py looks at the ports.
Nothing is created but a file of 4 KiB beside the data, for the cost of a sync, and it is removed at once.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import typer

from icestream import errors
from icestream.catalog.tokens import TOKEN_FILE_HINT, token_fault
from icestream.cli import findings
from icestream.cli.broker import BrokerOption, Target
from icestream.cli.connection import local_socket_of
from icestream.cli.findings import Finding, State
from icestream.cli.metadata_check import metadata_log
from icestream.cli.network_check import elsewhere, network
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat
from icestream.cli.storage_check import storage
from icestream.cli.told_settings import told_settings
from icestream.observability.words import counted
from icestream.pipeline.spark_setup import pinned_versions
from icestream.pipeline.spark_setup.spark_install import SetupPaths
from icestream.pipeline.spark_setup.spark_install import examine as examine_engine
from icestream.runtime.files import open_directory
from icestream.runtime.native import native
from icestream.settings import Settings
from icestream.wal.admission import default_quota
from icestream.wal.inspect import LogView, view_log
from icestream.wal.log_file import BALLAST_NAME, SYNC_FAILED_NAME, is_of_a_log

SYNCS: Final = 9
SYNC_BYTES: Final = 4096


def doctor(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check this machine, the data and the running broker; exit code 1 when there is a problem.

    Of a broker at an address, its ports and what it says of itself: its data is on its own machine.

    Example: icestream doctor --config broker.yml --output json
    """
    found = list(examine(Target(broker, config, sets)))
    answer = Output(output)
    if answer.width is None:
        rows = [(one.check, str(one.state), one.text, one.fix) for one in found]
        answer.table(("check", "state", "finding", "fix"), rows)
    else:  # at a terminal what to do stands below what was found
        texts = [(one, f"{one.text}; fix: {one.fix}" if one.fix else one.text) for one in found]
        answer.table(
            ("check", "state", "finding"), [(one.check, str(one.state), text) for one, text in texts], keep=("finding",)
        )
    problems = sum(one.state is State.PROBLEM for one in found)
    answer.say("")
    answer.say(f"{counted(len(found), 'check')}, {counted(problems, 'problem')}")
    if problems:
        raise typer.Exit(1)


def examine(target: Target) -> Iterator[Finding]:
    yield _versions()
    yield _native()
    yield findings.open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        if target.place.socket is None:
            yield from _engine(target.settings())
            yield from elsewhere(target)
            return
        settings = _settings(target)
    except errors.ConfigurationError as error:
        yield Finding("settings", State.PROBLEM, error.message, error.hint)
        yield findings.clock(time.time(), None)
        return
    chosen = target.config or target.place.rule
    yield Finding("settings", State.OK, f"{chosen}, data_dir {settings.data_dir}")
    if settings.storage.type == "memory":
        yield Finding("data", State.WARNING, "storage.type is memory: everything is forgotten at the end")
    else:
        yield from _data(settings)
        yield from storage(settings)
    yield from _engine(settings)
    yield from _tokens(settings)
    yield from network(settings)


def _settings(target: Target) -> Settings:
    """As the broker that runs says, else as the command does; of a broker that was named and does not run, its data."""
    try:
        return told_settings(target, needs_lake=False)
    except errors.ConnectionLost:
        data_dir = local_socket_of(target).parent
        return Target(None, target.config, [f"data_dir={data_dir}", *(target.sets or ())]).settings()


def _versions() -> Finding:
    try:
        own = version("icestream")
    except PackageNotFoundError:
        own = "(not installed as a package)"
    where = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    return Finding("versions", State.OK, f"icestream {own}, {where}")


def _native() -> Finding:
    if native is not None:
        return Finding("native part", State.OK, "built")
    return Finding("native part", State.WARNING, "not built: everything works, slower", "make native")


def _engine(settings: Settings) -> Iterator[Finding]:
    found = examine_engine(SetupPaths.of(settings, os.environ), pinned_versions.ICEBERG_SPARK)
    yield findings.java(found.java)
    yield findings.pyspark(found.pyspark)
    yield findings.iceberg_jar(pinned_versions.ICEBERG_SPARK, found.jars[pinned_versions.ICEBERG_SPARK])


def _tokens(settings: Settings) -> Iterator[Finding]:
    path = settings.lake.token_file
    if fault := token_fault(path):
        yield Finding("lake.token_file", State.PROBLEM, f"{path} {fault}", TOKEN_FILE_HINT)
    secrets = {
        "lake.token_file": path if not fault else None,
        "danube.tls_key": settings.danube.tls_key,
        "meta_store.tls_key": settings.meta_store.tls_key,
    }
    for setting, file in secrets.items():
        if file is None or not file.exists():
            continue
        if (finding := findings.secret_file(setting, str(file), file.stat().st_mode)) is not None:
            yield finding


# --- the data ---------------------------------------------------------------------------------------------------------


def _data(settings: Settings) -> Iterator[Finding]:
    place = _existing(settings.wal.base_path)
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        yield Finding("data", State.PROBLEM, f"{place} cannot be written", "use the account that runs the broker")
        return
    is_there = Path(settings.wal.base_path).is_dir()
    made = "" if is_there else f" (in it, {settings.wal.base_path} will be made)"
    yield Finding("data", State.OK, f"{place} can be written{made}")
    yield _sync(place, settings.wal.sync_mode)
    yield from _log(Path(settings.wal.base_path), place, settings)
    yield from metadata_log(settings.meta_store.data_dir)


def _existing(path: Path | str) -> Path:
    """It, or the nearest directory above it that is there."""
    found = Path(path).absolute()
    while not found.exists() and found != found.parent:
        found = found.parent
    return found


def _sync(place: Path, mode: str) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            return findings.sync_cost(statistics.median(_sync_seconds(file.fileno()) for _ in range(SYNCS)), mode)
    except OSError as error:
        return Finding("sync", State.PROBLEM, f"a sync in {place} failed: {error}", "check the disk and its free space")


def _sync_seconds(number: int) -> float:
    os.pwrite(number, os.urandom(SYNC_BYTES), 0)
    start = time.perf_counter()
    os.fdatasync(number)
    return time.perf_counter() - start


def _log(path: Path, place: Path, settings: Settings) -> Iterator[Finding]:
    names = [one for one in path.iterdir() if is_of_a_log(one.name)] if path.is_dir() else []
    times = []
    for one in names:
        with contextlib.suppress(FileNotFoundError):  # renamed by a running broker
            times.append(one.stat().st_mtime)
    view = _view(path) if names else LogView()
    used = view.used_bytes if isinstance(view, LogView) else 0
    free = shutil.disk_usage(place).free
    quota = settings.wal.quota or default_quota(free, used + (_ballast_bytes(path) if names else 0))
    yield findings.free_disk(free, used, quota, settings.wal.max_file_size)
    yield findings.clock(time.time(), max(times, default=None))
    if not names:
        yield Finding("log", State.OK, "there is none yet")
        return
    yield findings.log_share(used, quota)
    yield from _log_health(path, view)


def _view(path: Path) -> LogView | Exception:
    """The log as a start would find it, or why it cannot be read."""
    try:
        with contextlib.closing(open_directory(path, read_only=True)) as directory:
            return view_log(directory)
    except (errors.IcestreamError, OSError) as error:
        return error


def _ballast_bytes(path: Path) -> int:
    """Of the file that keeps room for draining: the log gets it back."""
    with contextlib.suppress(FileNotFoundError):
        return (path / BALLAST_NAME).stat().st_size
    return 0


def _log_health(path: Path, view: LogView | Exception) -> Iterator[Finding]:
    if (path / SYNC_FAILED_NAME).exists():
        yield Finding(
            "log sync", State.WARNING, "a sync failed in the last run", "check the disk, then start the broker"
        )
    if isinstance(view, Exception):
        yield Finding("log", State.PROBLEM, f"it cannot be read: {view}", "icestream wal inspect says more")
        return
    if view.damage is not None:
        yield Finding("log", State.PROBLEM, view.damage.message, view.damage.hint)
        return
    gaps = sum(len(shard.gaps) for shard in view.shards)
    counts = (counted(len(view.files), "file"), counted(len(view.shards), "shard"), counted(gaps, "declared gap"))
    text = f"{', '.join(counts)}, last record {view.last_lsn}"
    yield Finding("log", State.OK, text)
