"""Schemas of payloads: parsing, compatibility between versions, and validation of payloads. Pure.

Avro, JSON Schema, Protobuf, string, number and bytes; the registry that stores them is in `broker`.
"""
