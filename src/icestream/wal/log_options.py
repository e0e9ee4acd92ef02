"""Options of the log: plain values, built from the settings tree in one place (processes/component_options.py)."""

from __future__ import annotations

from dataclasses import dataclass

from icestream import errors, limits
from icestream.model.sync_mode import SyncMode
from icestream.wal.format import ALIGN


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of one log; `WriteAheadLog.change_options` says which may change while it runs."""

    mode: SyncMode = SyncMode.ALWAYS
    sync_interval_ms: int = 1000
    file_bytes: int = limits.LOG_FILE_BYTES_DEFAULT
    message_bytes_max: int = limits.MESSAGE_BYTES_MAX_DEFAULT
    align_bytes: int = ALIGN
    quota_bytes: int | None = None  # None: admission.default_quota
    topic_quota_bytes: int | None = None  # None: half of the node's
    in_flight_bytes: int = limits.IN_FLIGHT_BYTES_DEFAULT
    spare_files: int = limits.SPARE_FILES_DEFAULT
    inline_sync_below_us: int = 1000
    tail_bytes: int = limits.TAIL_BYTES_DEFAULT
    tail_ttl_ms: int = 0  # 0: a section stays until its memory is needed
    checkpoint_every_bytes: int = limits.CHECKPOINT_EVERY_BYTES
    retention_step_percent: int = limits.RETENTION_STEP_PERCENT_DEFAULT
    warm_ms: int = 0  # how long files stay that are entirely in tables, and how many bytes of them; 0: not at all
    warm_bytes: int = 0
    ballast_bytes: int | None = 0  # emergency reserve for draining a full disk; None: by the quota, 0: none

    def __post_init__(self) -> None:
        if not limits.LOG_FILE_BYTES_MIN <= self.file_bytes <= limits.LOG_FILE_BYTES_MAX:
            raise errors.ConfigurationError(
                f"max_file_size {self.file_bytes} is out of range",
                hint=f"{limits.LOG_FILE_BYTES_MIN} to {limits.LOG_FILE_BYTES_MAX} bytes are allowed",
            )
        if self.batch_bytes_max < 1024:
            raise errors.ConfigurationError(f"max_file_size {self.file_bytes} leaves no room for a message")

    @property
    def batch_bytes_max(self) -> int:
        """The largest block that fits: a file holds at least four of the largest records (hazard 19)."""
        return min(self.message_bytes_max + 64 * limits.KIB, self.file_bytes // limits.LOG_FILE_RECORDS_MIN - 4096)

    @property
    def rows_bytes_max(self) -> int:
        """The largest block of more than one message: a record holds two of them."""
        return min(self.batch_bytes_max, limits.RECORD_BYTES_TARGET // 2)


def too_large(rows: int, size: int, allowed: int) -> errors.MessageTooLarge:
    """The error for a block that exceeds `allowed` bytes."""
    if rows == 1:
        return errors.MessageTooLarge(
            f"message too large: {size} bytes, limit {allowed}",
            hint="raise storage.iceberg_config.wal.max_message_bytes, or send the content in parts",
        )
    return errors.MessageTooLarge(
        f"batch too large: {rows} messages of {size} bytes, limit {allowed}", hint="send smaller batches"
    )
