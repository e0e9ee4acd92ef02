"""The job that expires snapshots and tags of tables without commits, and bounds what tags of the pipeline keep.

It owns the rule by bytes; the rule by age belongs to the commits (commit/snapshot_expiry.py), whose plan it uses.
"""
