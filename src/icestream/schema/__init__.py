"""Schemas of payloads: parsing, compatibility between versions, and validation of payloads. Pure.

It owns the rules of each format: Avro, JSON Schema, Protobuf, string, number and bytes. The registry that stores
schemas is in `broker`.
"""
