"""Clusters: how nodes form one, dial each other, change members and transfer snapshots of the metadata store.

The consensus itself is in `metadata`; this package owns the Raft port, membership, and the offline recovery tools.
"""
