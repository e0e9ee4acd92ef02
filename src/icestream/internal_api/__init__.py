"""The calls that the local socket offers to processes of this node and to the command line.

They use the frames of the native protocol, but they are an internal API, not a front end: administration, the metadata
store, the pipeline, scans of tables, the warehouse fence, and the cluster.
"""
