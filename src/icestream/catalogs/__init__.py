"""Clients of catalogs and object stores, chosen by configuration, behind one interface, `TableCatalog`. It owns how a
commit is sent, retried and resolved after a lost reply, and how object stores are written and fenced.

catalog        `TableCatalog`, the interface: namespaces, tables, commits with one of three outcomes. Start here
factory        `open_catalog(settings)`, `open_files(settings)`: the one place that knows every kind
recognition    whether a commit is in a table that was read back. Pure
settlement     a commit, until its outcome is determined
breaker        closed, open, half-open. Pure
caller         every call: deadline, repeats with pauses, breaker, metrics
rest           any server of Iceberg's REST protocol, our own included
pointers       catalogs that are nothing but pointers to metadata files: glue (AWS Glue), sql (PostgreSQL)
bucket         objects in S3, GCS, Azure or memory; object_files: the files of tables there
embedded       our own catalog in the same process: the twin for tests and for the lake process
"""
