"""The operations of the catalog's clients on namespaces, tables, views and the tables of topics: read, plan, write
files, run the transaction. They own no rules: those are in `plans` and `topic_rules`.
"""
