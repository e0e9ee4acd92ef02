"""Iceberg's REST catalog protocol over HTTP (/v1/…). It owns routes, requests, responses and authentication; decisions
and records of the catalog belong to `icestream.catalog`."""
