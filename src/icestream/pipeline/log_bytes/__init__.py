"""Reading the log for a task: from its own files if they are on this machine, else from the broker that owns them."""
