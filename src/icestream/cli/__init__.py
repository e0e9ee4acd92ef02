"""The command line: `icestream <noun> <verb>`. It owns the commands with their options, help and output, the choice of
the broker that a command talks to, and the exit codes that errors become."""
