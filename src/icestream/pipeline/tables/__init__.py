"""The tables of topics: which table belongs to a topic, how it is laid out, and which offset comes next.

Owns the two offset ledgers: of our own catalog and of any other."""
