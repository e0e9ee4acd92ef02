"""The retention of tables: which rows are too old or too many, and the job that removes them by whole files.

It owns the plan of a removal, the clock that ages are compared with, and the times of commits (docs/adr/0066).
"""
