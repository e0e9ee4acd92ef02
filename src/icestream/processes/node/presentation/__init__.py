"""What a broker prints: the greeting of `icestream serve`, its JSON for programs, the demo, and commands to try.

It reads the state of a node and changes nothing, except for the demo, which publishes its messages.
"""
