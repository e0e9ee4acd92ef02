"""Identities, grants, and the decision whether an identity may act on a resource (ADR 57). Values and decisions are
pure; records, caches and credentials are the shell around them."""
