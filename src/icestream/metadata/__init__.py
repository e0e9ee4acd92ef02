"""The metadata store: a pure state machine of keys, revisions, leases and transactions behind a log of its own.

It owns the `raft` directory of a node, the commands and what they do; all others use the interface in `store.py`. One
voter runs a core in Python, several run the `raft` crate.
"""
