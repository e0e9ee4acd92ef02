"""The rules of topic tables: which commits are allowed, which offsets a snapshot holds, and what binding, adopting,
rewinding and recreating a table come to. Pure.
"""
