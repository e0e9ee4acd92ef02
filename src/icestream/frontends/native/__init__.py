"""The native protocol: connections that decode frames, call the broker and send responses, on TCP or the local socket.

The public calls are here; those of the local socket alone are in internal_api.
"""
