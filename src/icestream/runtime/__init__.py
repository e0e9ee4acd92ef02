"""The operating system behind small interfaces: clock, randomness, files, tasks, signals, sockets, parent processes.

It owns every call of the system that components would make themselves otherwise. Clock, randomness and disk have
simulated twins, so that a test decides about time, chance and failures.
"""
