"""What `icestream doctor` makes of what it measured. Pure: values in, findings out, each with what to do about it.

ok        nothing to do
warning   it works, and somebody should know
problem   it does not work, or will not for long: the exit code is not 0
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

# A disk that takes longer than this for a sync makes every ack of mode `always` as slow.
SYNC_SLOW_SECONDS: Final = 0.02
# No disk is that fast: the directory is in memory, or the sync does nothing.
SYNC_TOO_FAST_SECONDS: Final = 0.000_01
# Below this a broker serves a handful of connections.
OPEN_FILES_MIN: Final = 256
# Files of the log, the metadata store and libraries, beside the connections.
OPEN_FILES_OWN: Final = 256
# Permission bits of accounts that are neither the owner nor in the group of a file.
OTHERS: Final = 0o006
OTHERS_WRITE: Final = 0o002
# When this was written, and when somebody should look at this again: a clock outside of it is not set.
CLOCK_FIRST_SECONDS: Final = 1_767_225_600  # 2026
CLOCK_LAST_SECONDS: Final = 4_102_444_800  # 2100


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    check: str
    state: State
    text: str
    fix: str = ""


def free_disk(free_bytes: int, used_bytes: int, quota_bytes: int, file_bytes: int) -> Finding:
    text = f"{size_text(free_bytes)} free, the log uses {size_text(used_bytes)} of {size_text(quota_bytes)}"
    if free_bytes < file_bytes:
        return Finding("disk", State.PROBLEM, f"{text}: no room for a log file", "free some space")
    if quota_bytes - used_bytes > free_bytes:
        fix = "free some space, or lower storage.iceberg_config.wal.quota"
        return Finding("disk", State.WARNING, f"{text}: the disk is full before the quota is reached", fix)
    return Finding("disk", State.OK, text)


def secret_file(setting: str, path: str, mode: int) -> Finding | None:
    """Of a file with tokens or a private key. `mode`: its permission bits. None: other accounts cannot use it."""
    if not mode & OTHERS:
        return None
    done = "changed" if mode & OTHERS_WRITE else "read"
    text = f"{path} can be {done} by every account of this machine (mode {mode & 0o777:04o})"
    return Finding(setting, State.WARNING, text, f"chmod 600 {path}, with the account of the broker as its owner")


def sync_cost(seconds: float, mode: str) -> Finding:
    text = f"{seconds * 1000:.3f} ms for a sync of 4 KiB (the median of some)"
    if seconds >= SYNC_SLOW_SECONDS:
        fix = "use a faster disk, or storage.iceberg_config.wal.sync_mode=periodic"
        state = State.WARNING if mode == "always" else State.OK
        return Finding("sync", state, f"{text}; sync mode {mode}", fix if state is State.WARNING else "")
    if seconds < SYNC_TOO_FAST_SECONDS:
        fix = "put data_dir on a disk if messages must survive a power failure"
        return Finding("sync", State.WARNING, f"{text}: no disk is that fast", fix)
    return Finding("sync", State.OK, f"{text}; sync mode {mode}")


def open_files(allowed: int) -> Finding:
    """`allowed` is below 0 where there is no limit."""
    text = f"{allowed} files and connections may be open" if allowed >= 0 else "no limit"
    wanted = limits.CONNECTIONS_MAX + OPEN_FILES_OWN
    fix = f"raise the limit before `icestream serve`: ulimit -n {wanted}"
    if allowed < 0 or allowed >= wanted:
        return Finding("open files", State.OK, text)
    if allowed < OPEN_FILES_MIN:
        return Finding("open files", State.PROBLEM, text, fix)
    return Finding("open files", State.WARNING, f"{text}, the broker could serve {limits.CONNECTIONS_MAX}", fix)


def clock(now_seconds: float, newest_seconds: float | None) -> Finding:
    """`newest_seconds`: when the newest file of the log was written."""
    if not CLOCK_FIRST_SECONDS <= now_seconds < CLOCK_LAST_SECONDS:
        return Finding(
            "clock", State.PROBLEM, "the clock of this machine is not set", "set it, and keep it: chrony, ntp"
        )
    if newest_seconds is not None and newest_seconds > now_seconds + limits.CLOCK_CLAMP_US / 1e6:
        ahead = newest_seconds - now_seconds
        fix = "check the clock; times of messages would go back"
        return Finding("clock", State.WARNING, f"the log was written {ahead:.0f} s in the future", fix)
    return Finding("clock", State.OK, "plausible")


def log_share(used_bytes: int, quota_bytes: int) -> Finding:
    text = f"{100 * used_bytes // max(quota_bytes, 1)} % of the quota is used"
    fix = "let consumers and the pipeline catch up, or raise storage.iceberg_config.wal.quota"
    if used_bytes >= quota_bytes:
        return Finding("log quota", State.PROBLEM, f"{text}: producers are refused", fix)
    if used_bytes >= quota_bytes * limits.QUOTA_SLOW_SHARE:
        return Finding("log quota", State.WARNING, f"{text}: producers are slowed", fix)
    return Finding("log quota", State.OK, text)


# --- what the pipeline runs on ----------------------------------------------------------------------------------------

# The broker takes messages without these; they wait in the log.
SET_UP: Final = "icestream pipeline setup"


def java(choice: JavaChoice) -> Finding:
    if choice.java is not None:
        return Finding("java", State.OK, f"{choice.java.version}, {choice.java.home} ({choice.java.origin})")
    if not choice.refused:
        return Finding("java", State.WARNING, "none was found", SET_UP)
    return Finding("java", State.WARNING, "; ".join(choice.refused), f"set JAVA_HOME to a fit one, or {SET_UP}")


def pyspark(version: str) -> Finding:
    fault = python_packages.pyspark_fault(version)
    if not fault:
        return Finding("pyspark", State.OK, version)
    return Finding("pyspark", State.PROBLEM if version else State.WARNING, fault, python_packages.INSTALL_PYSPARK)


def iceberg_jar(jar: PinnedJar, choice: JarChoice) -> Finding:
    if choice.copy is not None:
        return Finding("iceberg jar", State.OK, f"{jar.version}, {choice.copy.path}; size and SHA-256 are right")
    if choice.is_final:
        fix = "put the right file there, or take it out of ICESTREAM_JARS"
        return Finding("iceberg jar", State.PROBLEM, "; ".join(choice.refused), fix)
    return Finding("iceberg jar", State.WARNING, "; ".join(choice.refused) or f"{jar.file_name} is not here", SET_UP)
