"""Plans of transactions: entries that were read in, comparisons and operations out. Pure.

They own which keys of the metadata store a change compares and writes; `transactions` runs them.
"""
