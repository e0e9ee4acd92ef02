"""Rows as data files of Iceberg tables: partition values, Parquet, metrics, and where the bytes go."""
