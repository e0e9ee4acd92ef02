"""Rows: the bytes of the log as Arrow columns, many sections and blocks at a time, with numpy.

Checks that no length leads outside of the bytes, because Arrow would follow it."""
