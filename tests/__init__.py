"""The tests. A package with a name, because some packages on PyPI install a `tests` of their own (gmqtt does)."""
