"""Readers of topic tables: data files of any engine, decoded into the columns of a message, by shard and offset.

`verify` proves with the same readers that a table holds every committed offset exactly once.
"""
