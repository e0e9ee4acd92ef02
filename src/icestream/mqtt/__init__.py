"""The MQTT protocol, 3.1.1 and 5.0, without I/O: packets, their bytes, topics and filters, one connection's state.

Bytes and commands go in, packets and events come out; the front end owns sockets, clocks and storage. Nothing here
imports above `model`, so the durable layer may match filters with the same code as the wire.
"""
