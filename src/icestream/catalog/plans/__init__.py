"""Plans of transactions: entries that were read in, comparisons and operations out. Pure; `transactions` runs them."""
