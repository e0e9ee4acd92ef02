"""Finds or installs what Spark runs on: a Java, PySpark and the jars of Iceberg. Imports no PySpark."""
