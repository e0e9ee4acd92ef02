"""What operators see of a process: metrics, health checks, structured log messages and spans.

It owns the names of all metrics (`metrics.py`), the form of log lines, and the HTTP listener that serves metrics and
health in broker and pipeline.
"""
