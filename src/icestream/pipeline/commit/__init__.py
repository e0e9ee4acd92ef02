"""Commits: from written files to a snapshot of a table, with each offset in it exactly once.

Owns snapshots, manifest merging, expiry, and the judgement of a catalog's outcomes."""
