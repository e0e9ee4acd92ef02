"""Erasure of messages from topics (docs/adr/0119): the job, its tasks, and the evaluation of predicates."""
