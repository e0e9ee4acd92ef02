"""Every bound of Icestream, with its unit in its name and its reason beside it.

A bound that an operator may move is a setting whose default stands here; the others are part of a format or of a
promise and do not move.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- messages -------------------------------------------------------------------------------------------------------
# A message (key, payload, headers, wire) must fit one record with room for its directory.
MESSAGE_BYTES_MAX_DEFAULT: Final = 4_000_000
# Above this a single message would need log files of more than 256 MiB (LOG_FILE_RECORDS_MIN).
MESSAGE_BYTES_MAX: Final = 64 * MIB
# Names become Iceberg names and metadata keys; object stores end at 1,024 bytes for a whole key.
TOPIC_NAME_BYTES_MAX: Final = 512

# --- records --------------------------------------------------------------------------------------------------------
# One record is verified and copied as a whole by recovery; 4 MiB keeps that, and the largest write, at milliseconds.
RECORD_BYTES_TARGET: Final = 4 * MIB
# One message of the largest size, its directory entry, header and padding.
RECORD_BYTES_MAX: Final = MESSAGE_BYTES_MAX + 64 * KIB
# The directory of a record is read before its sections: at 64 bytes an entry this is at most 1 MiB.
RECORD_SECTIONS_MAX: Final = 16_384
# Offsets in a block are 32-bit counts; more rows than this never make a batch cheaper.
BLOCK_ROWS_MAX: Final = 1_048_576

# --- log files ------------------------------------------------------------------------------------------------------
# Positions inside a file are 32-bit.
LOG_FILE_BYTES_MAX: Final = 2 * GIB
# The seed's `max_file_size`.
LOG_FILE_BYTES_DEFAULT: Final = 64 * MIB
# Small files are for tests; below this the header page would be a noticeable share.
LOG_FILE_BYTES_MIN: Final = 64 * KIB
# A file must hold several of the largest records, or rotation happens at every record (hazard 19).
LOG_FILE_RECORDS_MIN: Final = 4
# One index entry for each 64 KiB of a shard's own bytes: 1,024 entries and one per shard for a 64 MiB file (hazard 20).
INDEX_STRIDE_BYTES: Final = 64 * KIB
# Spare files: one in use at the next rotation, one behind it (hazard 36).
SPARE_FILES_DEFAULT: Final = 2
# Freed files beyond this are deleted instead of kept for reuse (hazard 36).
SPARE_BYTES_MAX: Final = 1 * GIB
# Zeroing goes in slices of this size with a pause after each, so that a tick never queues behind 64 MiB.
ZERO_SLICE_BYTES: Final = 1 * MIB
ZERO_BYTES_PER_SECOND: Final = 200 * MIB
# Larger records always go to the thread: written inline, a burst would sync each of them alone.
INLINE_WRITE_BYTES_MAX: Final = 64 * KIB
# In the modes without a sync per tick the kernel is asked to start writing at this distance, so that the sync at
# sealing finds little left to do.
WRITE_BACK_BYTES: Final = 8 * MIB
# After a file could not be made (disk full) the next try comes this much later, at the next append.
PREPARE_RETRY_NS: Final = 1_000_000_000
# Resident footers of sealed files; beyond this the least recently used is read again on demand (hazard 20).
FOOTERS_RESIDENT_MAX: Final = 64

# --- backpressure ---------------------------------------------------------------------------------------------------
# Bytes between assignment and ack, node-wide (hazard 35).
IN_FLIGHT_BYTES_DEFAULT: Final = 64 * MIB
# Share of a quota from which producers are slowed, and the longest pause for one append at the very end of it.
QUOTA_SLOW_SHARE: Final = 0.8
QUOTA_PAUSE_SECONDS_MAX: Final = 0.25
# Node quota by default: half of the free space at the first start, at most this (hazard 16).
NODE_QUOTA_BYTES_MAX_DEFAULT: Final = 100 * GIB
# Topic quota by default: this share of the node's.
TOPIC_QUOTA_SHARE: Final = 0.5

# --- offsets --------------------------------------------------------------------------------------------------------
# Offsets are signed 64-bit in the table; the last 2^62 are never reached and leave room for sums.
OFFSET_MAX: Final = 2**62
# Offsets promised ahead in `periodic` and `none`: one durable note per million messages of a shard.
RESERVE_BLOCK_OFFSETS: Final = 2**20
# A clock that steps back by less than this is clamped, more is stored as it is (hazard 32).
CLOCK_CLAMP_US: Final = 5_000_000
# Declared gaps listed per shard before those below the floor are left to the metadata store. Adjacent gaps merge,
# and an unclean start makes at most one.
GAPS_PER_SHARD_MAX: Final = 1_024

# --- producers ------------------------------------------------------------------------------------------------------
# Batches remembered per producer and shard: also the number it may have in flight (hazard 7).
PRODUCER_WINDOW_BATCHES: Final = 64
PRODUCERS_MAX_DEFAULT: Final = 100_000
PRODUCER_AGE_SECONDS_DEFAULT: Final = 7 * 24 * 3600

# --- reads ----------------------------------------------------------------------------------------------------------
# One read returns at most this many bytes (or one section, when that is larger).
READ_BYTES_DEFAULT: Final = 1 * MIB
# A read holds its file at most this long; then its pin is broken and the reader resolves its position again (33).
PIN_SECONDS_MAX: Final = 30.0
# Reads run in this many threads of their own, off the loop (hazard 35).
READ_THREADS: Final = 2
# A follower gets at most this many bytes of records per step.
FOLLOW_BYTES_MAX: Final = 8 * MIB

# --- checkpoints ----------------------------------------------------------------------------------------------------
# The newest and the one before it: a torn newest costs more scanning, never state (hazard 4).
CHECKPOINTS_KEPT: Final = 2
# Producer windows encoded at once: 64 batches each, about 1 ms of the loop.
CHECKPOINT_SLICE_WINDOWS: Final = 64
# Room kept for a checkpoint: what frees the files of a full disk must itself fit on it (hazard 16).
CHECKPOINT_RESERVE_BYTES: Final = 1 * MIB
# After this many bytes of log a new checkpoint is written, so that a start scans at most about this much.
CHECKPOINT_EVERY_BYTES: Final = 256 * MIB

# --- settings -------------------------------------------------------------------------------------------------------
# A settings file is read into memory as a whole; the one with every key and comment is below 16 KiB.
SETTINGS_FILE_BYTES_MAX: Final = 1 * MIB
# Header, directory entries, the topic's name, fixed columns and up to one page of padding around a single message.
RECORD_OVERHEAD_BYTES_MAX: Final = 8 * KIB
# Spares beyond this cannot be in use at once; they would only take space from the log.
SPARE_FILES_MAX: Final = 16
# `periodic` may lose what was acked in one interval: more than a minute of it is `none` by another name.
SYNC_INTERVAL_MS_DEFAULT: Final = 1_000
SYNC_INTERVAL_MS_MAX: Final = 60_000
# Shorter syncs than this are done on an idle loop; a loop that stands longer would delay the next ack by more than
# the change of threads that it saves.
INLINE_SYNC_BELOW_US_DEFAULT: Final = 1_000
INLINE_SYNC_BELOW_US_MAX: Final = 1_000_000
# What one writing task collects of one topic; a first choice, to be measured with the pipeline.
WRITER_BATCH_SIZE_DEFAULT: Final = 100_000
WRITER_BATCH_SIZE_MAX: Final = 100_000_000
WRITER_MEMORY_BYTES_DEFAULT: Final = 256 * MIB
# Five seconds from ack to table row by default. Each commit is a snapshot and a file: ten in a second is where it ends.
WRITER_FLUSH_INTERVAL_MS_DEFAULT: Final = 5_000
WRITER_FLUSH_INTERVAL_MS_MIN: Final = 100
WRITER_FLUSH_INTERVAL_MS_MAX: Final = 24 * 3600 * 1000
# A Raft group gets slower with each voter and seldom has more than nine; a list beyond this is a mistake.
SEED_NODES_MAX: Final = 32
