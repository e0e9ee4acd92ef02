"""Finds or installs what Spark runs on: a Java, PySpark and the jars of Iceberg. Imports no PySpark.

It owns the pinned versions and checksums, and the search for copies that a machine already has.
"""
