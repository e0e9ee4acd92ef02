"""The write-ahead log: stores batches of messages durably, hands them to readers by offset, and survives any crash.

Owns every byte below the log directory: log files, checkpoints, spill files, recovery, repair and quotas.
"""
