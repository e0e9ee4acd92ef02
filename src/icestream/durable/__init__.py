"""Durable sessions over shards: iterators, session records and their fold, retained messages, the persistence filter.

Independent of the backend: shard_storage.py names the few calls that a storage must have (ADR 60). Decisions are pure;
only session_log.py and iterator.py wait for a storage.
"""
