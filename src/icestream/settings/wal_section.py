"""`storage.iceberg_config.wal`: the log of this node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from icestream import limits
from icestream.settings import text, units
from icestream.settings.section import ONLINE, Broken, Section, derived

_FILE_SIZE = units.size(limits.LOG_FILE_BYTES_MIN, limits.LOG_FILE_BYTES_MAX)
_MESSAGE_SIZE = units.size(1, limits.MESSAGE_BYTES_MAX)
_SIZE = units.size(1)


class WalSection(Section):
    """The log: the only place where a message becomes durable."""

    base_path: Annotated[Path, text.DIRECTORY] = Field(
        description="Directory of the log files. One process at a time owns it. Put it on the disk whose fdatasync is "
        "fastest: the ack of a message in mode `always` waits for it.",
        json_schema_extra=derived("`wal` below `data_dir`"),
    )
    max_file_size: Annotated[int, _FILE_SIZE] = Field(
        default=limits.LOG_FILE_BYTES_DEFAULT,
        description="Size at which a log file is sealed and the next one begins. Space returns to the node file by "
        "file, so large files free it late; small ones rotate often. It must hold at least four of the largest "
        "messages. The default is that of the Danube configuration.",
    )
    sync_mode: Literal["always", "periodic", "none"] = Field(
        default="always",
        description="When a message counts as stored. `always`: the ack leaves after fdatasync, so an acked message "
        "survives power loss. `periodic`: the ack leaves after the write and fdatasync follows every "
        "`sync_interval_ms`; power loss may cost that interval. `none`: the operating system decides when to write "
        "back. A crash of the process alone loses nothing in any mode. The default is the one that loses nothing.",
    )
    sync_interval_ms: Annotated[int, units.duration("ms", 1, limits.SYNC_INTERVAL_MS_MAX)] = Field(
        default=limits.SYNC_INTERVAL_MS_DEFAULT,
        description="Time between two fdatasync in mode `periodic`, which is what power loss may cost; the other modes "
        "ignore it. The default is that of the Danube configuration.",
        json_schema_extra=ONLINE,
    )
    quota: Annotated[int, _SIZE] | None = Field(
        default=None,
        description="Bytes that the log of this node may take. Near it producers are slowed, at it they are refused, "
        "and nothing is dropped. Without it: half of what this log has and what is free at the start, at most "
        "100 GiB, so that tables and metadata on the same disk keep room.",
        json_schema_extra=ONLINE,
    )
    ballast: Annotated[int, units.size(0)] | None = Field(
        default=None,
        description="Room that is kept free for what drains the log, as a file beside it. When the disk is full it is "
        "given up: data files, metadata and checkpoints have room, the log has not, and producers are refused until "
        "the ballast is back. Without it: a quarter of `quota`, at most 1 GiB. 0 keeps none: then a disk that is full "
        "stays full until an operator makes room.",
    )
    topic_quota: Annotated[int, _SIZE] | None = Field(
        default=None,
        description="Bytes of the log that one topic may take, so that one stuck topic does not fill it for all. "
        "Without it: half of `quota`.",
        json_schema_extra=ONLINE,
    )
    in_flight_bytes: Annotated[int, _SIZE] = Field(
        default=limits.IN_FLIGHT_BYTES_DEFAULT,
        description="Bytes between the assignment of an offset and its ack, over all topics of the node. More "
        "waits its turn without one. It bounds memory; the default is room for a dozen records in the queue.",
        json_schema_extra=ONLINE,
    )
    max_message_bytes: Annotated[int, _MESSAGE_SIZE] = Field(
        default=limits.MESSAGE_BYTES_MAX_DEFAULT,
        description="Largest message: key, payload, headers and protocol properties together. The default stays below "
        "the 4 MiB that gRPC clients accept and that one record aims at.",
    )
    align_bytes: Literal[8, 512, 4096] = Field(
        default=8,
        description="Every record starts at a multiple of this. 8 assumes that a disk which rewrites a sector keeps "
        "the bytes that do not change; for a disk that may tear a sector at power loss, 512 or 4096 gives each "
        "record sectors of its own, at the price of padding.",
    )
    spare_files: Annotated[int, units.count(0, limits.SPARE_FILES_MAX)] = Field(
        default=limits.SPARE_FILES_DEFAULT,
        description="Empty files kept ready, so that rotation does not wait for zeroing. The default is one for the "
        "next rotation and one behind it.",
    )
    inline_sync_below_us: Annotated[int, units.duration("us", 0, limits.INLINE_SYNC_BELOW_US_MAX)] = Field(
        default=limits.INLINE_SYNC_BELOW_US_DEFAULT,
        description="While measured syncs are shorter than this and the loop is idle, it syncs by itself instead of "
        "handing over to the writer thread: less latency for a lone producer. 0 never does so.",
        json_schema_extra=ONLINE,
    )
    checkpoint_every_bytes: Annotated[int, units.size(limits.LOG_FILE_BYTES_MIN)] = Field(
        default=limits.CHECKPOINT_EVERY_BYTES,
        description="After this much new log a checkpoint is written. A start scans about as much, so it bounds the "
        "time of a start; the default is four log files of the default size.",
        json_schema_extra=ONLINE,
    )

    warm_ms: Annotated[int, units.duration("ms", 0, limits.WARM_MS_MAX)] = Field(
        default=limits.WARM_MS_DEFAULT,
        description="How long a log file stays after all of its messages are in tables. Readers that are a little late "
        "find them here instead of in Parquet, and a mistake with a table can be undone. Such files count as room: "
        "they are the first to go when the log needs it. 0 frees them at once; the default is ten minutes.",
        json_schema_extra=ONLINE,
    )
    warm_bytes: Annotated[int, units.size(0)] = Field(
        default=limits.WARM_BYTES_DEFAULT,
        description="At most so much of the log is kept that way; the oldest of it go first. 0 keeps nothing. The "
        "default is 16 log files of the default size.",
        json_schema_extra=ONLINE,
    )
    retention_step_percent: Annotated[int, units.count(1, 100)] = Field(
        default=limits.RETENTION_STEP_PERCENT_DEFAULT,
        description="How much of a topic's bytes in the log may be dropped at once, once a minute, because they are "
        "older than its policy `retention_ms` (more only where one log file has more). Should the clock of the machine "
        "be wrong, the rest is still there when an operator notices. Topics have no retention by default.",
        json_schema_extra=ONLINE,
    )

    def broken_rules(self) -> Iterator[Broken]:
        yield from self._message_fits_file()
        yield from self._message_fits_flight()
        if self.quota is not None and self.topic_quota is not None and self.topic_quota > self.quota:
            yield Broken(
                ("topic_quota", "quota"),
                f"`topic_quota` ({_SIZE.show(self.topic_quota)}) is above `quota` ({_SIZE.show(self.quota)})",
                f"set `topic_quota` to at most {_SIZE.show(self.quota)}, or leave it out for half of `quota`",
            )

    def _message_fits_file(self) -> Iterator[Broken]:
        """Otherwise the log rotates at every record (hazard 19)."""
        record_bytes = self.max_message_bytes + limits.RECORD_OVERHEAD_BYTES_MAX
        needed = limits.LOG_FILE_RECORDS_MIN * record_bytes
        if self.max_file_size >= needed:
            return
        fits = self.max_file_size // limits.LOG_FILE_RECORDS_MIN - limits.RECORD_OVERHEAD_BYTES_MAX
        yield Broken(
            ("max_file_size", "max_message_bytes"),
            f"a log file of `max_file_size` {_SIZE.show(self.max_file_size)} does not hold "
            f"{limits.LOG_FILE_RECORDS_MIN} messages of `max_message_bytes` {_SIZE.show(self.max_message_bytes)}",
            f"set `max_file_size` to at least {needed} bytes, or `max_message_bytes` to at most {fits}",
        )

    def _message_fits_flight(self) -> Iterator[Broken]:
        """Otherwise the largest message would be refused for ever, with an error that says to try again."""
        needed = self.max_message_bytes + limits.RECORD_OVERHEAD_BYTES_MAX
        if self.in_flight_bytes < needed:
            yield Broken(
                ("in_flight_bytes", "max_message_bytes"),
                f"`in_flight_bytes` {_SIZE.show(self.in_flight_bytes)} has no room for one message of "
                f"`max_message_bytes` {_SIZE.show(self.max_message_bytes)}",
                f"set `in_flight_bytes` to at least {needed} bytes",
            )
