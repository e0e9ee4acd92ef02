"""Catalogs and object stores by configuration: whatever keeps the tables, it is asked in one way.

catalog        `TableCatalog`, the interface: namespaces, tables, commits with one of three answers. Start here
factory        `open_catalog(settings)`, `open_files(settings)`: the one place that knows every kind
recognition    is a commit of ours in a table that was read back? Pure
settlement     a commit until its outcome is known
breaker        closed, open, half-open. Pure
caller         every call: deadline, repeats with pauses, breaker, metrics
rest           any server of Iceberg's REST protocol, our own included
pointers       catalogs that are nothing but pointers to metadata files: glue (AWS Glue), sql (PostgreSQL)
bucket         objects in S3, GCS, Azure or memory; object_files: the files of tables there
embedded       our own catalog in the same process: the twin for tests and for the lake process
"""
