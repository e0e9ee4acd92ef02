"""Danube's gRPC services for its clients and admin tools, as tables of handlers.

It owns the translation of Danube's messages, ids and status codes. The native gRPC server or grpc.aio serves the
tables; both are imported only if Danube is enabled.
"""
