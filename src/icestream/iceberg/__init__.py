"""The Iceberg specification: types, schemas, transforms, metadata documents, updates, manifests, table files.

Everything here works on values of the specification and knows no catalog, no topic and no process. The catalog server,
the clients of catalogs, the readers and the pipeline stand above it and do not import each other's Iceberg code.
"""
