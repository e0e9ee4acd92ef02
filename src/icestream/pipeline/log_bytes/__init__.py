"""The bytes of a range, for a task: from the log's own file where it is at hand, else from the broker that owns it."""
