"""Frames, streams, handshakes and links: how the processes and nodes of Icestream talk to each other and to clients.

The codecs are pure; `link` and `link_keeper` are the dialling end that reconnects, `local_socket` the listening path.
"""
