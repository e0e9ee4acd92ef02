"""Tasks: what runs in Spark's Python workers, ranges of the log in, data files out. Imports no Spark."""
