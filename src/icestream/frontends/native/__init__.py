"""The native protocol: connections that decode frames, call the broker and send responses, on TCP or the local socket.

It owns the order of responses, the outgoing bytes of each connection, and the public calls; those of the local socket
alone are in internal_api.
"""
