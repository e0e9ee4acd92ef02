"""Data files: rows of a topic as Parquet, split by partition value, written durably to disk or object store."""
