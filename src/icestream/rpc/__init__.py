"""Frames, streams, handshakes and connections: how clients, processes and nodes of Icestream talk to each other.

It owns the bytes of the native protocol and the life of a connection, but no call. The codecs are pure;
`dialled_connection`, `pending_calls` and `backoff` are shared by every side that opens connections (clients, `link` and
`link_keeper` of processes, links between nodes); `local_socket` is where a broker listens locally.
"""
