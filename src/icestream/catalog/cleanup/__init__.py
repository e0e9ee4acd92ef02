"""The background clean-up of the lake process: files of purged tables, retired and orphan metadata files, and tables of
deleted topics. Nothing is removed within an hour of the change that made it obsolete.
"""
