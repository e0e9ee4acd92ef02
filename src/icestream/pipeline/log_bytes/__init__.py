"""Reading the log for a task: from its own files if they are on this machine, else from the broker that owns them.

It owns the scan of such a range: its good sections, and the damage, which is data and not an exception.
"""
