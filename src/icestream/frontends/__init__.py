"""The front ends: they translate protocols of clients to use cases of the broker, and its results back.

Each is a folder with a subclass of FrontEnd (front_end.py), by which the node starts, shows and closes it.
"""
