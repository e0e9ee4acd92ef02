"""What runs in Spark's Python workers: ranges of the log in, files of tables out. Imports no Spark."""
