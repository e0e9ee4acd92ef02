"""Durable sessions over shards: iterators, session records and their fold, retained messages, the persistence filter.

It owns the records of sessions and what they mean, over any storage that has the few calls of shard_storage.py (ADR
60). Decisions are pure; only session_log.py and iterator.py wait for a storage.
"""
