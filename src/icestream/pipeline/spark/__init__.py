"""Spark as the engine of rounds: its session, its Python workers, and a round as one job."""
