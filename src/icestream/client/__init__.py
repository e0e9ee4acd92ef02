"""The Python client: connections that reopen themselves, producers, subscriptions, and the same with blocking calls.

It owns everything that runs in a user's process; public.py lists the names that `icestream` exports.
"""
