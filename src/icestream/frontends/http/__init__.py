"""The broker's own HTTP: health, readiness, metrics, and ranges of log files for the pipeline.

It owns the listener and its routes. The admin API and the Iceberg catalog are served by the lake process, not here.
"""
