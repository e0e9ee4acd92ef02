"""The requests and answers of the admin surface, each declared once: namespaces, topics, subscriptions, node, tables.

The calls of the local socket, the HTTP API with its OpenAPI, the columns of the command line and docs/api.md follow
from these declarations, or tests compare them. They are plain structs, which every process can import.
"""
