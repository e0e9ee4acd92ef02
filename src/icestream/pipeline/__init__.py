"""The pipeline: the process that brings messages from the log into Iceberg tables, round by round, with Spark.

Owns planning, writing and committing rounds, the clean-up of files, and the set-up of Spark."""
