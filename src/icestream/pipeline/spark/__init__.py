"""Spark sessions: starting and ending them, their Python workers, and a round as one job.

It is the only package that imports PySpark, and it does so when the first session starts.
"""
