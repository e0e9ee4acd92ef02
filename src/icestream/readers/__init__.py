"""Reads rows of topic tables by shard and offset, whichever engine wrote the files, as sections of the log.

It plans scans over manifests, decodes one window of offsets at a time, and verifies tables (`verify`).
"""
