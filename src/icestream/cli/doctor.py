"""`icestream doctor`: checks this machine, the data and the running broker. It changes nothing.

One line per check. doctor_rules.py judges measured values; network_check.py checks the ports. The only file it creates
is one of 4 KiB next to the data, to time a sync; it is removed at once.
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
from icestream.cli import doctor_rules
from icestream.cli.broker_connection import require_local_socket
from icestream.cli.broker_location import BrokerOption, Target
from icestream.cli.broker_settings import broker_settings
from icestream.cli.doctor_rules import CheckResult, CheckState
from icestream.cli.login_profile import find_token
from icestream.cli.network_check import check_network, check_remote_broker
from icestream.cli.options import ConfigFile, OutputChoice, Sets
from icestream.cli.output import Output, OutputFormat
from icestream.cli.storage_check import check_storage
from icestream.metadata.repair import NOTHING_SAVED_HINT, TrialRecovery
from icestream.metadata.repair import examine as examine_metadata
from icestream.metadata.watermark import read_mark
from icestream.observability.words import counted
from icestream.pipeline.spark_setup import pinned_versions
from icestream.pipeline.spark_setup.spark_install import examine as examine_engine
from icestream.processes.pipeline_options import setup_paths
from icestream.runtime.files import open_directory
from icestream.runtime.native import native
from icestream.settings import Settings
from icestream.wal.admission import default_quota
from icestream.wal.inspect import LogView, view_log
from icestream.wal.log_file import BALLAST_NAME, LOCK_NAME, SYNC_FAILED_NAME, is_of_a_log

SYNC_BYTES: Final = 4096
METADATA_CHECK: Final = "metadata log"


def doctor(
    broker: BrokerOption = None,
    config: ConfigFile = None,
    sets: Sets = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Check this machine, the data and the running broker; exit code 1 if there is a problem.

    Of a broker at an address only ports and health are checked: its data is on another machine.

    Example: icestream doctor --config broker.yml --output json
    """
    results = list(examine(Target(broker, config, sets)))
    answer = Output(output)
    if answer.width is None:
        rows = [(result.check, str(result.state), result.text, result.fix) for result in results]
        answer.table(("check", "state", "finding", "fix"), rows)
    else:  # a terminal is too narrow for a column of fixes
        texts = [f"{result.text}; fix: {result.fix}" if result.fix else result.text for result in results]
        narrow_rows = [(result.check, str(result.state), text) for result, text in zip(results, texts, strict=True)]
        answer.table(("check", "state", "finding"), narrow_rows, keep=("finding",))
    problems = sum(result.state is CheckState.PROBLEM for result in results)
    answer.print_line("")
    answer.print_line(f"{counted(len(results), 'check')}, {counted(problems, 'problem')}")
    if problems:
        raise typer.Exit(1)


def examine(target: Target) -> Iterator[CheckResult]:
    """The results of all checks that apply to the target."""
    yield _versions()
    yield _native()
    yield doctor_rules.open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        if target.location.socket is None:
            yield from _engine(target.settings())
            yield from check_remote_broker(target)
            return
        settings = _settings(target)
    except errors.ConfigurationError as error:
        yield CheckResult("settings", CheckState.PROBLEM, error.message, error.hint)
        yield doctor_rules.clock(time.time(), None)
        return
    source = target.config or target.location.chosen_by
    yield CheckResult("settings", CheckState.OK, f"{source}, data_dir {settings.data_dir}")
    if settings.storage.type == "memory":
        yield CheckResult("data", CheckState.WARNING, "storage.type is memory: all data is lost when the broker stops")
    else:
        yield from _data(settings)
        yield from check_storage(settings)
    yield from _engine(settings)
    yield from _tokens(settings)
    yield from check_network(settings, find_token(target.location))


def _settings(target: Target) -> Settings:
    """The settings that the running broker reports, else those of the command; with the data_dir of a named broker that
    is not running, or that does not report them without a login."""
    try:
        return broker_settings(target, needs_lake=False)
    except (errors.ConnectionLost, errors.Unauthenticated, errors.PermissionDenied):
        data_dir = require_local_socket(target).parent
        return Target(None, target.config, [f"data_dir={data_dir}", *(target.sets or ())]).settings()


def _versions() -> CheckResult:
    try:
        own = version("icestream")
    except PackageNotFoundError:
        own = "(not installed as a package)"
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    return CheckResult("versions", CheckState.OK, f"icestream {own}, {machine}")


def _native() -> CheckResult:
    if native is not None:
        return CheckResult("native part", CheckState.OK, "built")
    text = "not built: slower, and no cluster"
    return CheckResult("native part", CheckState.WARNING, text, "make native")


def _engine(settings: Settings) -> Iterator[CheckResult]:
    engine = examine_engine(setup_paths(settings, os.environ), pinned_versions.ICEBERG_SPARK)
    yield doctor_rules.java(engine.java)
    yield doctor_rules.pyspark(engine.pyspark)
    yield doctor_rules.iceberg_jar(pinned_versions.ICEBERG_SPARK, engine.jars[pinned_versions.ICEBERG_SPARK])


def _tokens(settings: Settings) -> Iterator[CheckResult]:
    path = settings.lake.token_file
    if fault := token_fault(path):
        yield CheckResult("lake.token_file", CheckState.PROBLEM, f"{path} {fault}", TOKEN_FILE_HINT)
    secrets = {
        "danube.tls_key": settings.danube.tls_key,
        "meta_store.tls_key": settings.meta_store.tls_key,
    }
    for setting, file in secrets.items():
        if file is None or not file.exists():
            continue
        if (result := doctor_rules.secret_file(setting, str(file), file.stat().st_mode)) is not None:
            yield result


# --- the data ---------------------------------------------------------------------------------------------------------


def _data(settings: Settings) -> Iterator[CheckResult]:
    base_path = Path(settings.wal.base_path)
    directory = _existing_directory(base_path)
    if not (directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)):
        fix = "use the account that runs the broker"
        yield CheckResult("data", CheckState.PROBLEM, f"{directory} is not writable", fix)
        return
    suffix = "" if base_path.is_dir() else f" ({settings.wal.base_path} will be created)"
    yield CheckResult("data", CheckState.OK, f"{directory} is writable{suffix}")
    yield _sync(directory, settings.wal.sync_mode)
    yield from _log(base_path, directory, settings)
    yield from check_metadata_log(settings.meta_store.data_dir)


def _existing_directory(path: Path) -> Path:
    """The path, or its nearest ancestor that exists."""
    directory = path.absolute()
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return directory


def _sync(directory: Path, mode: str) -> CheckResult:
    samples = range(doctor_rules.SYNC_SAMPLES)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            return doctor_rules.sync_cost(statistics.median(_sync_seconds(file.fileno()) for _ in samples), mode)
    except OSError as error:
        fix = "check the disk and its free space"
        return CheckResult("sync", CheckState.PROBLEM, f"sync in {directory} failed: {error}", fix)


def _sync_seconds(descriptor: int) -> float:
    os.pwrite(descriptor, os.urandom(SYNC_BYTES), 0)
    start = time.perf_counter()
    os.fdatasync(descriptor)
    return time.perf_counter() - start


def _log(path: Path, directory: Path, settings: Settings) -> Iterator[CheckResult]:
    """Checks of the log in `path`, which is below the existing `directory`."""
    files = [file for file in path.iterdir() if is_of_a_log(file.name)] if path.is_dir() else []
    times = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # renamed by a running broker
            times.append(file.stat().st_mtime)
    view = _view(path) if files else LogView()
    used = view.used_bytes if isinstance(view, LogView) else 0
    free = shutil.disk_usage(directory).free
    quota = settings.wal.quota or default_quota(free, used + (_ballast_bytes(path) if files else 0))
    yield doctor_rules.free_disk(free, used, quota, settings.wal.max_file_size)
    yield doctor_rules.clock(time.time(), max(times, default=None))
    if not files:
        yield CheckResult("log", CheckState.OK, "no log yet")
        return
    yield doctor_rules.log_share(used, quota)
    yield from _log_health(path, view)


def _view(path: Path) -> LogView | Exception:
    """The log as recovery would read it, or the error that prevents that."""
    try:
        with contextlib.closing(open_directory(path, read_only=True)) as directory:
            return view_log(directory)
    except (errors.IcestreamError, OSError) as error:
        return error


def _ballast_bytes(path: Path) -> int:
    """The size of the reserved file (ballast), which is part of what the log may use."""
    with contextlib.suppress(FileNotFoundError):
        return (path / BALLAST_NAME).stat().st_size
    return 0


def _log_health(path: Path, view: LogView | Exception) -> Iterator[CheckResult]:
    if (path / SYNC_FAILED_NAME).exists():
        yield CheckResult(
            "log sync", CheckState.WARNING, "a sync failed during the last run", "check the disk, then start the broker"
        )
    if isinstance(view, Exception):
        fix = "`icestream wal inspect` shows details"
        yield CheckResult("log", CheckState.PROBLEM, f"the log cannot be read: {view}", fix)
        return
    if view.damage is not None:
        yield CheckResult("log", CheckState.PROBLEM, view.damage.message, view.damage.hint)
        return
    gaps = sum(len(shard.gaps) for shard in view.shards)
    counts = (counted(len(view.files), "file"), counted(len(view.shards), "shard"), counted(gaps, "declared gap"))
    text = f"{', '.join(counts)}, last record {view.last_lsn}"
    yield CheckResult("log", CheckState.OK, text)


def check_metadata_log(path: Path) -> Iterator[CheckResult]:
    """The check of the metadata log: one result, or none if no node has ever started on this path. Changes nothing."""
    if not (path / LOCK_NAME).exists():
        if read_mark(path) is not None:
            text = f"{path} is missing although a node has used it"
            fix = "restore the whole data_dir; in a cluster: icestream cluster rejoin"
            yield CheckResult(METADATA_CHECK, CheckState.PROBLEM, text, fix)
        return
    try:
        health = examine_metadata(path)
    except FileNotFoundError:  # replaced by the running node in the meantime
        yield CheckResult(METADATA_CHECK, CheckState.OK, "in use")
        return
    except OSError as error:
        fix = "use the account that runs the broker"
        yield CheckResult(METADATA_CHECK, CheckState.PROBLEM, f"the metadata log cannot be read: {error}", fix)
        return
    if health.damage is None:
        yield CheckResult(METADATA_CHECK, CheckState.OK, counted(health.records, "record"))
        return
    yield CheckResult(METADATA_CHECK, CheckState.PROBLEM, health.damage.message, _repair_command(health, path))


def _repair_command(health: TrialRecovery, path: Path) -> str:
    if health.is_member:
        return f"icestream cluster rejoin --dir {path}"
    return f"icestream metadata repair --dir {path}" if health.saved is not None else NOTHING_SAVED_HINT
