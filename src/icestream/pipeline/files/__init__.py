"""Data files: rows of a topic as Parquet, split by partition value, written durably to disk or object store.

It owns how rows are grouped into files, and the column metrics that a file's manifest entry needs.
"""
