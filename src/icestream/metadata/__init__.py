"""The metadata store: a pure state machine of keys, revisions, leases and transactions behind a log of its own.

One voter runs a core in Python, several run the `raft` crate; the rest of Icestream uses the interface in `store.py`.
"""
