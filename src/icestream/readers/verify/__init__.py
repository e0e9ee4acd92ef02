"""Checks that a topic's table has every committed offset exactly once, or a recorded reason for its absence.

It reads manifests and, on request, every row, and reports findings while it runs.
"""
