"""The driver: the loop of the pipeline process and the jobs that it runs under its lease.

Owns the lease, the tables of topics in memory, ingest rounds, retries, and the report to the broker."""
