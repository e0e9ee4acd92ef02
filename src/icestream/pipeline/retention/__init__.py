"""The retention of tables: which rows are too old or too many, and the job that removes them by whole files."""
