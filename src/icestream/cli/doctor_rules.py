"""The rules of `icestream doctor`: turn measured values into check results, each with a fix. Pure.

ok        nothing to do
warning   works, but needs attention
problem   does not work, or soon will not: the exit code is not 0
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from icestream import limits
from icestream.observability.words import size_text
from icestream.pipeline.spark_setup import python_packages
from icestream.pipeline.spark_setup.jar_choice import JarChoice
from icestream.pipeline.spark_setup.java_choice import JavaChoice
from icestream.pipeline.spark_setup.pinned_versions import PinnedJar
from icestream.settings.secret_source import mode_fault

# In sync mode `always` every acknowledgement waits for a sync.
SYNC_SLOW_SECONDS: Final = 0.02
# Syncs that doctor times.
SYNC_SAMPLES: Final = 9
# No disk is this fast: the directory is in memory, or the sync has no effect.
SYNC_TOO_FAST_SECONDS: Final = 0.000_01
# With fewer a broker could serve only a handful of connections.
OPEN_FILES_MIN: Final = 256
# Open files of the log, the metadata store and libraries, besides the connections.
OPEN_FILES_OWN: Final = 256
# The plausible range of the clock: a time outside of it means that the clock is not set.
CLOCK_FIRST_SECONDS: Final = 1_767_225_600  # 2026
CLOCK_LAST_SECONDS: Final = 4_102_444_800  # 2100


class CheckState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class CheckResult(NamedTuple):
    check: str
    state: CheckState
    text: str
    fix: str = ""


def free_disk(free_bytes: int, used_bytes: int, quota_bytes: int, file_bytes: int) -> CheckResult:
    text = f"{size_text(free_bytes)} free, the log uses {size_text(used_bytes)} of {size_text(quota_bytes)}"
    if free_bytes < file_bytes:
        return CheckResult("disk", CheckState.PROBLEM, f"{text}: no space for another log file", "free disk space")
    if quota_bytes - used_bytes > free_bytes:
        fix = "free disk space, or lower storage.iceberg_config.wal.quota"
        return CheckResult("disk", CheckState.WARNING, f"{text}: the disk will be full before the quota is", fix)
    return CheckResult("disk", CheckState.OK, text)


def secret_file(setting: str, path: str, mode: int) -> CheckResult | None:
    """The check of a file with a private key, by permission bits; None if other accounts have no access. A broker
    refuses to start with such a file."""
    if not (fault := mode_fault(mode)):
        return None
    return CheckResult(
        setting, CheckState.PROBLEM, f"{path} {fault}", f"chmod 600 {path}, owned by the account of the broker"
    )


def sync_cost(seconds: float, mode: str) -> CheckResult:
    text = f"{seconds * 1000:.3f} ms per sync of 4 KiB (median of {SYNC_SAMPLES})"
    if seconds >= SYNC_SLOW_SECONDS:
        fix = "use a faster disk, or storage.iceberg_config.wal.sync_mode=periodic"
        state = CheckState.WARNING if mode == "always" else CheckState.OK
        return CheckResult("sync", state, f"{text}; sync mode {mode}", fix if state is CheckState.WARNING else "")
    if seconds < SYNC_TOO_FAST_SECONDS:
        fix = "move data_dir to a disk if messages must survive a power failure"
        return CheckResult("sync", CheckState.WARNING, f"{text}: too fast for a disk", fix)
    return CheckResult("sync", CheckState.OK, f"{text}; sync mode {mode}")


def open_files(allowed: int) -> CheckResult:
    """The check of the limit of open files; `allowed` is negative if there is no limit."""
    text = f"limit of {allowed} open files and connections" if allowed >= 0 else "no limit"
    required = limits.CONNECTIONS_MAX + OPEN_FILES_OWN
    fix = f"raise the limit before `icestream serve`: ulimit -n {required}"
    if allowed < 0 or allowed >= required:
        return CheckResult("open files", CheckState.OK, text)
    if allowed < OPEN_FILES_MIN:
        return CheckResult("open files", CheckState.PROBLEM, text, fix)
    text += f"; the broker supports {limits.CONNECTIONS_MAX} connections"
    return CheckResult("open files", CheckState.WARNING, text, fix)


def clock(now_seconds: float, newest_seconds: float | None) -> CheckResult:
    """The check of the clock; `newest_seconds` is the modification time of the newest log file."""
    if not CLOCK_FIRST_SECONDS <= now_seconds < CLOCK_LAST_SECONDS:
        return CheckResult(
            "clock", CheckState.PROBLEM, "the clock of this machine is not set", "set the clock and run chrony or ntpd"
        )
    if newest_seconds is not None and newest_seconds > now_seconds + limits.CLOCK_CLAMP_US / 1e6:
        ahead = newest_seconds - now_seconds
        fix = "check the clock; message times would not increase"
        return CheckResult("clock", CheckState.WARNING, f"the log was written {ahead:.0f} s in the future", fix)
    return CheckResult("clock", CheckState.OK, "plausible")


def log_share(used_bytes: int, quota_bytes: int) -> CheckResult:
    text = f"{100 * used_bytes // max(quota_bytes, 1)} % of the quota used"
    fix = "wait for consumers and the pipeline to catch up, or raise storage.iceberg_config.wal.quota"
    if used_bytes >= quota_bytes:
        return CheckResult("log quota", CheckState.PROBLEM, f"{text}: messages are rejected", fix)
    if used_bytes >= quota_bytes * limits.QUOTA_SLOW_SHARE:
        return CheckResult("log quota", CheckState.WARNING, f"{text}: producers are throttled", fix)
    return CheckResult("log quota", CheckState.OK, text)


# --- requirements of the pipeline -------------------------------------------------------------------------------------

# Without these the broker still accepts messages; they stay in the log.
SET_UP: Final = "icestream pipeline setup"


def java(choice: JavaChoice) -> CheckResult:
    if choice.java is not None:
        return CheckResult("java", CheckState.OK, f"{choice.java.version}, {choice.java.home} ({choice.java.origin})")
    if not choice.refused:
        return CheckResult("java", CheckState.WARNING, "no Java found", SET_UP)
    fix = f"set JAVA_HOME to a supported version, or run {SET_UP}"
    return CheckResult("java", CheckState.WARNING, "; ".join(choice.refused), fix)


def pyspark(version: str) -> CheckResult:
    fault = python_packages.pyspark_fault(version)
    if not fault:
        return CheckResult("pyspark", CheckState.OK, version)
    return CheckResult(
        "pyspark", CheckState.PROBLEM if version else CheckState.WARNING, fault, python_packages.INSTALL_PYSPARK
    )


def iceberg_jar(jar: PinnedJar, choice: JarChoice) -> CheckResult:
    if choice.copy is not None:
        text = f"{jar.version}, {choice.copy.path}; size and SHA-256 are correct"
        return CheckResult("iceberg jar", CheckState.OK, text)
    if choice.is_final:
        fix = "replace the file, or remove it from ICESTREAM_JARS"
        return CheckResult("iceberg jar", CheckState.PROBLEM, "; ".join(choice.refused), fix)
    text = "; ".join(choice.refused) or f"{jar.file_name} not found"
    return CheckResult("iceberg jar", CheckState.WARNING, text, SET_UP)
