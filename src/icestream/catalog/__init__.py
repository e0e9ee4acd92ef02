"""The embedded Iceberg catalog: it owns the pointers of tables and views, which table belongs to which topic, and the
rule that each offset enters a table exactly once. It is a library over a metadata store and knows no HTTP; start at
catalog.py.
"""
