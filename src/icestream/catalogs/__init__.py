"""Clients of catalogs and object stores, chosen by configuration, behind one interface, `TableCatalog`. It owns how a
commit is sent, retried and resolved after a lost reply, and how object stores are written and fenced.

table_catalog        `TableCatalog`, the interface: namespaces, tables, commits with one of three outcomes. Start here
commit_recognition   whether a commit or a creation is in a table that was read back. Pure
commit_resolution    sends a commit until its outcome is determined; multi_table_commit: several tables in a request
circuit_breaker      closed, open, half-open. Pure
storage_caller       every call: deadline, retries with backoff, circuit breaker, metrics
rest                 any server of Iceberg's REST protocol, our own included
pointer_catalog      catalogs that only keep pointers to metadata files: glue (AWS Glue), sql (PostgreSQL)
embedded             our own catalog in the same process
bucket               objects in S3, GCS, Azure or memory; object_files: the files of tables there
mirror               our own record of a topic's table in another catalog
warehouse_fence      keeps a replaced cluster from writing to an object store
"""
