"""The check `disk`: what the log takes, what it may take, and what is left on its file system. Pure."""

from __future__ import annotations

from typing import NamedTuple

from icestream import limits
from icestream.observability.health import Check
from icestream.observability.words import size_text


class DiskState(NamedTuple):
    used_bytes: int  # by the log, without what can go at once
    quota_bytes: int  # that it may use
    slow_bytes: int  # from which on producers are slowed
    is_quota_set: bool  # by the settings; else it follows from the free space at the start
    free_bytes: int  # on the file system
    total_bytes: int
    file_bytes: int  # of a log file
    is_ballast_in_use: bool = False
    prepare_error: str = ""  # why the next log file could not be made


def disk_check(state: DiskState) -> Check:
    """Shown only: consumers are served from a full disk too, and a disk does not drain because clients stay away."""
    fault = _fault(state)
    shown = f"the log uses {size_text(state.used_bytes)} of {size_text(state.quota_bytes)}"
    return Check("disk", not fault, f"{fault}: {shown}" if fault else shown, is_needed=False)


def low_bytes(state: DiskState) -> int:
    """Below so many free bytes a disk is nearly full."""
    share = min(int(state.total_bytes * limits.DISK_LOW_SHARE), limits.DISK_LOW_BYTES_MAX)
    return max(share, 2 * state.file_bytes)


def _fault(state: DiskState) -> str:
    free = f"{size_text(state.free_bytes)} of {size_text(state.total_bytes)} are free"
    if state.is_ballast_in_use:
        return "it is full, what was kept for draining is in use"
    if state.prepare_error:
        return f"no room for another file: {state.prepare_error}"
    if state.used_bytes >= state.quota_bytes:
        return "the quota is reached, producers are refused"
    if state.used_bytes >= state.slow_bytes:
        return "the quota is near, producers are slowed"
    if state.free_bytes < low_bytes(state):
        return f"it is nearly full ({free}); free some space"
    if not state.is_quota_set and state.quota_bytes < _usual_quota(state) * limits.QUOTA_FALLEN_SHARE:
        return (
            f"the quota fell with the free space ({free}; on an empty disk it would be "
            f"{size_text(_usual_quota(state))}); free some space, or set storage.iceberg_config.wal.quota"
        )
    if state.quota_bytes - state.used_bytes > state.free_bytes:
        return f"it is full before the quota is reached ({free}); free some space, or lower the quota"
    return ""


def _usual_quota(state: DiskState) -> int:
    """What the quota would be on the same disk if nothing else were on it (wal/admission.py)."""
    return min(state.total_bytes // 2, limits.NODE_QUOTA_BYTES_MAX_DEFAULT)
