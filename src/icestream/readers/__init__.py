"""Reads rows of topic tables by shard and offset, whichever engine wrote the files, as sections of the log.

It owns how scans are planned over manifests, decoded one window of offsets at a time, and cached; `verify` checks
tables with the same code.
"""
