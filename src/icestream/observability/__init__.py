"""What operators see of a process: metrics, health checks, structured log messages and spans.

Every metric is declared in `metrics.py`; the HTTP listener here serves metrics and health in broker and pipeline.
"""
