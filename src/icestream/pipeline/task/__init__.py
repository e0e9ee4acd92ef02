"""Tasks: what runs in Spark's Python workers, ranges of the log in, data files out.

It owns the jobs that tasks get and the results that they return, as bytes. It imports no Spark, so that tests run tasks
directly.
"""
