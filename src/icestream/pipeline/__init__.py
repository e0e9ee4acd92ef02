"""The pipeline from the log into the tables. Today: what it runs on, found and set up."""
