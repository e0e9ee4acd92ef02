"""Rows: the bytes of the log as Arrow columns, many sections and blocks at a time, with numpy.

It owns the check that no length leads outside of the bytes, because Arrow would follow it."""
