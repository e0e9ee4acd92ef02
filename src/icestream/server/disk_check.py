"""The readiness check `disk`: space used by the log, its quota, and the free space of its file system. Pure."""

from __future__ import annotations

from typing import NamedTuple

from icestream import limits
from icestream.observability.health import Check
from icestream.observability.words import size_text


class DiskState(NamedTuple):
    used_bytes: int  # by the log, without reclaimable files
    quota_bytes: int  # of the log
    slow_bytes: int  # producers are slowed down above it
    is_quota_set: bool  # in the settings; else it is derived from the free space at the start
    free_bytes: int  # on the file system
    total_bytes: int
    file_bytes: int  # of a log file
    is_ballast_in_use: bool = False
    prepare_error: str = ""  # why the next log file could not be created


def disk_check(state: DiskState) -> Check:
    """Informational: consumers are served from a full disk too, and keeping clients away does not free space."""
    fault = _fault(state)
    usage = f"the log uses {size_text(state.used_bytes)} of {size_text(state.quota_bytes)}"
    return Check("disk", not fault, f"{fault}: {usage}" if fault else usage, is_needed=False)


def low_bytes(state: DiskState) -> int:
    """The free bytes below which a disk counts as nearly full."""
    share = min(int(state.total_bytes * limits.DISK_LOW_SHARE), limits.DISK_LOW_BYTES_MAX)
    return max(share, 2 * state.file_bytes)


def _fault(state: DiskState) -> str:
    free = f"{size_text(state.free_bytes)} of {size_text(state.total_bytes)} are free"
    if state.is_ballast_in_use:
        return "disk full: the emergency reserve (ballast) is in use"
    if state.prepare_error:
        return f"cannot create another log file: {state.prepare_error}"
    if state.used_bytes >= state.quota_bytes:
        return "quota reached: producers are refused"
    if state.used_bytes >= state.slow_bytes:
        return "quota nearly reached: producers are slowed down"
    if state.free_bytes < low_bytes(state):
        return f"disk nearly full ({free}); free some space"
    if not state.is_quota_set and state.quota_bytes < _usual_quota(state) * limits.QUOTA_FALLEN_SHARE:
        return (
            f"the quota fell with the free space ({free}; on an empty disk it would be "
            f"{size_text(_usual_quota(state))}); free some space, or set storage.iceberg_config.wal.quota"
        )
    if state.quota_bytes - state.used_bytes > state.free_bytes:
        return f"the free space is smaller than the rest of the quota ({free}); free some space, or lower the quota"
    return ""


def _usual_quota(state: DiskState) -> int:
    """The default quota on the same disk without other data (wal/admission.py)."""
    return min(state.total_bytes // 2, limits.NODE_QUOTA_BYTES_MAX_DEFAULT)
