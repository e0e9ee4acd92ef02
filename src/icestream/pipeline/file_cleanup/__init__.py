"""Removes files of tables that are not needed any more: of expired snapshots and of failed commits.

Owns the rule of what may be removed, and the job that applies it."""
