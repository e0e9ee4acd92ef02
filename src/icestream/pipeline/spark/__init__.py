"""Spark sessions: starting and ending them, their Python workers, and a round as one job."""
