"""A node of the metadata store with a port for clients, for measurements and for the chaos of tests."""
