"""Danube's gRPC services for its clients and admin tools, as tables of handlers.

The native gRPC server or grpc.aio serves the tables; both are imported only if Danube is enabled.
"""
