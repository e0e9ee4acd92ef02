"""Clients of MQTT 3.1.1 and 5.0, by TCP and WebSocket, with and without TLS.

It owns sockets, listeners, time limits and credentials. Packets are those of `mqtt`, what they do is decided behind
`broker/mqtt/client_link.py`.
"""
