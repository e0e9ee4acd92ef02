"""The bytes of the log as rows: sections, blocks and their columns, many at a time, in numpy and Arrow."""
