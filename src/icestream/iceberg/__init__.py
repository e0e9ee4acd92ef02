"""The Iceberg specification: schemas, partitioning, metadata documents, updates, manifests, and the I/O of table files.

Everything here works on values of the specification and knows neither catalogs nor topics nor processes; the catalog
server, the catalog clients, the readers and the pipeline are built on it.
"""
