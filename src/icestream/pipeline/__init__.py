"""The pipeline: brings messages from the log into Iceberg tables, round by round, with Spark.

It owns planning, writing and committing rounds, the other jobs of the driver (compaction, retention, clean-up of
files), and the set-up of Spark; `processes.pipeline_process` puts the driver together.
"""
