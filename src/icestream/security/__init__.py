"""Identities, grants, and the decision whether an identity may act on a resource (ADR 57). It owns accounts,
credentials and the records of rights; values and decisions are pure, the rest is the shell around them.
"""
